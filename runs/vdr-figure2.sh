#!/usr/bin/env bash
# Cross-modal retrieval by the number K of dimensions of texts and images
# Usage: bash runs/vdr-figure2.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-figure2 "$@"
