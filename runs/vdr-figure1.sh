#!/usr/bin/env bash
# DPR as other papers report it and as trained by the authors
# Usage: bash runs/vdr-figure1.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-figure1 "$@"
