#!/usr/bin/env bash
# Speed and index size against CLIP
# Usage: bash runs/lexlip-large-scale.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" lexlip-large-scale "$@"
