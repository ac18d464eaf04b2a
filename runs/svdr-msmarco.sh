#!/usr/bin/env bash
# The checkpoint svdr-msmarco, with bags of tokens as documents and fully parametric
# Usage: bash runs/svdr-msmarco.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" svdr-msmarco "$@"
