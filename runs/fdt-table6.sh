#!/usr/bin/env bash
# By the image encoder
# Usage: bash runs/fdt-table6.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table6 "$@"
