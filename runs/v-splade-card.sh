#!/usr/bin/env bash
# Six benchmarks of pages
# Usage: bash runs/v-splade-card.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" v-splade-card "$@"
