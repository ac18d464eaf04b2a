#!/usr/bin/env bash
# Retrieval without training on the data sets
# Usage: bash runs/stair-table2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table2 "$@"
