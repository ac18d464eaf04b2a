#!/usr/bin/env bash
# Published checkpoints on MS MARCO
# Usage: bash runs/splade-msmarco.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" splade-msmarco "$@"
