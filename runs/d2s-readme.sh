#!/usr/bin/env bash
# Terms of one image of COCO in the README of the authors' repository
# Usage: bash runs/d2s-readme.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" d2s-readme "$@"
