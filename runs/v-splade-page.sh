#!/usr/bin/env bash
# Heaviest terms of the sample page in the authors' repository
# Usage: bash runs/v-splade-page.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" v-splade-page "$@"
