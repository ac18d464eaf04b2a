#!/usr/bin/env bash
# Latency beside a dense model, a figure of the main text
# Usage: bash runs/vdr-latency.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" vdr-latency "$@"
