#!/usr/bin/env bash
# Published checkpoints on ViDoRe v2, mean of four English data sets
# Usage: bash runs/v-splade-readme.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" v-splade-readme "$@"
