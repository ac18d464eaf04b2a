#!/usr/bin/env bash
# What FDT costs, mean over image encoders
# Usage: bash runs/fdt-section4-3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-section4-3 "$@"
