#!/usr/bin/env bash
# What the pretrained language-model head is worth, after epochs of training on MS MARCO
# Usage: bash runs/vdr-table3.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-table3 "$@"
