#!/usr/bin/env bash
# Linter, types and tests; the first call makes the environment.
# Usage: bash tests/run.sh [--python VERSION] [--heavy] [pytest arguments]
#   --python 3.13   with another Python: one on PATH, else Debian's in a root of its own (tests/other_python.sh)
#   --heavy         only the slow tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = "--python" ]; then exec bash tests/other_python.sh "${@:2}"; fi
source runs/setup.sh test

which="not heavy"
if [ "${1:-}" = "--heavy" ]; then which="heavy"; shift; fi

ruff check .
ruff format --check .
mypy
python -m pytest -n 2 --dist loadfile -m "$which" "$@"
