#!/usr/bin/env bash
# By training data and batch size
# Usage: bash runs/stair-table6.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table6 "$@"
