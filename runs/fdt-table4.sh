#!/usr/bin/env bash
# Retrieval and visual question answering, models trained on 15M pairs
# Usage: bash runs/fdt-table4.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table4 "$@"
