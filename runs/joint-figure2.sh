#!/usr/bin/env bash
# Terms that a query and an image share, against recall, with and without expansion control
# Usage: bash runs/joint-figure2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" joint-figure2 "$@"
