#!/usr/bin/env bash
# Retrieval of texts by the number k of dimensions of the query
# Usage: bash runs/vdr-table4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-table4 "$@"
