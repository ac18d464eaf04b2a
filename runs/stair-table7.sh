#!/usr/bin/env bash
# Training in a single stage, retrieval
# Usage: bash runs/stair-table7.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table7 "$@"
