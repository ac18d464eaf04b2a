#!/usr/bin/env bash
# After each stage, zero-shot classification of ImageNet and retrieval of COCO and Flickr30k
# Usage: bash runs/stair-figure7.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-figure7 "$@"
