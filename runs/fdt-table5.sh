#!/usr/bin/env bash
# By the number of training pairs
# Usage: bash runs/fdt-table5.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table5 "$@"
