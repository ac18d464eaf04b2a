#!/usr/bin/env bash
# Published checkpoints on COCO
# Usage: bash runs/clip-coco.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" clip-coco "$@"
