#!/usr/bin/env bash
# The released checkpoints, trained on CC3M
# Usage: bash runs/fdt-cc3m.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-cc3m "$@"
