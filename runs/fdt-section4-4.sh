#!/usr/bin/env bash
# Share of pairs whose complete sentence is more similar to the image than the partial one
# Usage: bash runs/fdt-section4-4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-section4-4 "$@"
