#!/usr/bin/env bash
# With and without a sparsity constraint; weights of tokens as features are marked by a star
# Usage: bash runs/fdt-table8.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table8 "$@"
