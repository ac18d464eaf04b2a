#!/usr/bin/env bash
# Numbers of parameters
# Usage: bash runs/stair-table1.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table1 "$@"
