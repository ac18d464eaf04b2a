#!/usr/bin/env bash
# Heaviest terms of two images and their captions, in a single stage and in three stages
# Usage: bash runs/stair-figure6.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-figure6 "$@"
