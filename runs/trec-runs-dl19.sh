#!/usr/bin/env bash
# TREC Deep Learning 2019, passages
# Usage: bash runs/trec-runs-dl19.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" trec-runs-dl19 "$@"
