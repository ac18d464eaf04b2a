#!/usr/bin/env bash
# Heaviest terms of the nine images of figure 5
# Usage: bash runs/stair-table11.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table11 "$@"
