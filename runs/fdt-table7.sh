#!/usr/bin/env bash
# By the number of tokens
# Usage: bash runs/fdt-table7.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table7 "$@"
