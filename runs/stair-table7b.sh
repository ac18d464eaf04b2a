#!/usr/bin/env bash
# Training in a single stage, zero-shot classification (the lower half of table 7)
# Usage: bash runs/stair-table7b.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table7b "$@"
