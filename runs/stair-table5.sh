#!/usr/bin/env bash
# Rank of the class word among all words of the vocabulary
# Usage: bash runs/stair-table5.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table5 "$@"
