#!/usr/bin/env bash
# BM25 on the two data sets of BEIR that every machine can search
# Usage: bash runs/bm25-beir.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" bm25-beir "$@"
