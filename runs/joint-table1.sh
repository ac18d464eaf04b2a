#!/usr/bin/env bash
# Sparse models, texts search images
# Usage: bash runs/joint-table1.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" joint-table1 "$@"
