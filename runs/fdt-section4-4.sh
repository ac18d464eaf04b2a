#!/usr/bin/env bash
# The completeness probe
# Usage: bash runs/fdt-section4-4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-section4-4 "$@"
