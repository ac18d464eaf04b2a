#!/usr/bin/env bash
# Linear probe, models trained on 15M pairs
# Usage: bash runs/fdt-table3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" fdt-table3 "$@"
