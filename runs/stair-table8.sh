#!/usr/bin/env bash
# Training in a single stage, rank of the class word among all words of the vocabulary
# Usage: bash runs/stair-table8.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table8 "$@"
