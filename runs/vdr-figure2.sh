#!/usr/bin/env bash
# Mean weight per token over COCO's test texts and images, with and without bags of words in training
# Usage: bash runs/vdr-figure2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-figure2 "$@"
