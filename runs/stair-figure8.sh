#!/usr/bin/env bash
# Active terms and zero-shot results by the weight of the regulariser
# Usage: bash runs/stair-figure8.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-figure8 "$@"
