#!/usr/bin/env bash
# Cross-modal baselines from two sources
# Usage: bash runs/vdr-table2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-table2 "$@"
