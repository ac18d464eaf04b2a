#!/usr/bin/env bash
# Sparse vectors of frozen BLIP and ALBEF vectors, texts search images
# Usage: bash runs/d2s-readme.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" d2s-readme "$@"
