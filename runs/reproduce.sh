#!/usr/bin/env bash
# Makes the environment and calls `lexvl reproduce`: tables of papers, measured and compared with what is printed.
# Usage: bash runs/reproduce.sh TABLE [options]      the scripts of single tables call it; --all --dry-run lists them
set -euo pipefail
here=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" minilm
cd "$here"
lexvl reproduce "$@"
