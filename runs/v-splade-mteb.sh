#!/usr/bin/env bash
# Published checkpoints on ViDoRe v2, mean of four English data sets, as MTEB measures them
# Usage: bash runs/v-splade-mteb.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" v-splade-mteb "$@"
