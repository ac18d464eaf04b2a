#!/usr/bin/env bash
# Size of the head
# Usage: bash runs/d2s-head.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" d2s-head "$@"
