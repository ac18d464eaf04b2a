#!/usr/bin/env bash
# LIMIT-small (46 documents), by the number of dimensions
# Usage: bash runs/limit-table4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" limit-table4 "$@"
