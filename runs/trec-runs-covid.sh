#!/usr/bin/env bash
# TREC-COVID
# Usage: bash runs/trec-runs-covid.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" trec-runs-covid "$@"
