#!/usr/bin/env bash
# Speed of retrieval
# Usage: bash runs/stair-table9.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table9 "$@"
