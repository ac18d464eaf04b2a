#!/usr/bin/env bash
# Tests, or linter and types; the first call makes the environment.
# Usage: bash tests/run.sh [--all | --rest | --heavy] [pytest arguments]
#        bash tests/run.sh --attack [--minutes N] [--seed S] [pytest arguments]
#        bash tests/run.sh --python VERSION ...
#        bash tests/run.sh --lint
#   --all           also the tests of scripts, workflows, the site builder, wheels and tools, and slow cases beside quick ones
#   --rest          of --all, the tests that the last run in this checkout did not pass, and those of the plug-ins
#   --heavy         only the slow tests; the environment gets the extra [docs] too, for the documentation site
#   --attack        only the attack (tests of the mark), for 10 minutes and with a random seed if not given
#   --python 3.13   with another Python: one on PATH, else Debian's in a root of its own (tests/other_python.sh);
#                   after it --newest: all packages in their newest versions, also beyond the bounds of setup.cfg, or --pin:
#                   those within the bounds, which it writes to constraints/
#   --lint          only linter and types
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = "--python" ]; then exec bash tests/other_python.sh "${@:2}"; fi
extras=${LEXVL_TEST_EXTRAS:-test} # continuous integration has more
if [ "${1:-}" = "--heavy" ]; then extras=$extras,docs; fi
source runs/setup.sh "$extras"
# Reads CIFF files by protobuf, as an oracle. It declares an older protobuf than ONNX does, and works with ONNX's.
python -c 'import ciff_toolkit' 2>/dev/null || python -m pip install -qq --no-deps ciff-toolkit==0.2.2 ||
  echo "note: ciff-toolkit cannot be installed; its test is skipped" >&2

if [ "${1:-}" = "--lint" ]; then
  ruff check .
  ruff format --check .
  exec mypy
fi

if [ "${1:-}" = "--attack" ]; then
  shift
  export LEXVL_ATTACK_MINUTES=10 LEXVL_ATTACK_SEED=$RANDOM
  while true; do
    case "${1:-}" in
      --minutes) LEXVL_ATTACK_MINUTES=$2 ;;
      --seed) LEXVL_ATTACK_SEED=$2 ;;
      *) break ;;
    esac
    shift 2
  done
  exec python -m pytest -n 2 --dist worksteal -m attack "$@"
fi

case "${1:-}" in
  --all) which="not heavy"; shift ;;
  --rest) which="not heavy" ;; # an option of pytest too (tests/outcomes.py)
  --heavy) which="heavy and not attack"; shift ;;
  *) which="not heavy and not extended" ;;
esac
# In the order of the folders: sorted by numbers of tests, as xdist does, the files of few and long tests come last.
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$which" "$@"
