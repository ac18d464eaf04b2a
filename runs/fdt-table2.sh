#!/usr/bin/env bash
# Zero-shot classification, models trained on 15M pairs
# Usage: bash runs/fdt-table2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table2 "$@"
