#!/usr/bin/env bash
# Dense models and their twins after joint training, texts search images
# Usage: bash runs/joint-table2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" joint-table2 "$@"
