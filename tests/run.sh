#!/usr/bin/env bash
# Linter, types and tests; the first call makes the environment.
# Usage: bash tests/run.sh [--heavy] [pytest arguments]     --heavy runs only the slow tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh test

which="not heavy"
if [ "${1:-}" = "--heavy" ]; then which="heavy"; shift; fi

ruff check .
ruff format --check .
mypy
python -m pytest -n 2 --dist loadfile -m "$which" "$@"
