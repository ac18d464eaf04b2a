#!/usr/bin/env bash
# Without text encoder, texts as bags of their own tokens
# Usage: bash runs/stair-table10.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" stair-table10 "$@"
