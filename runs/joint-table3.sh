#!/usr/bin/env bash
# Ablation with ALBEF, texts search images
# Usage: bash runs/joint-table3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" joint-table3 "$@"
