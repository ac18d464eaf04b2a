#!/usr/bin/env bash
# Zero-shot classification
# Usage: bash runs/stair-table3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table3 "$@"
