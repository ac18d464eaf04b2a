#!/usr/bin/env bash
# What FDT adds to CLIP's parameters
# Usage: bash runs/fdt-section4-3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-section4-3 "$@"
