#!/usr/bin/env bash
# Linear probe
# Usage: bash runs/stair-table4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table4 "$@"
