#!/usr/bin/env bash
# Tests and quickstart with another Python, on a clean clone of the commit that is checked out.
# Usage: bash tests/other_python.sh VERSION [arguments of tests/run.sh]       (bash tests/run.sh --python VERSION ...)
#        bash tests/other_python.sh VERSION --newest | --pin
#   --newest   linter and types too, and the newest versions of all packages, also beyond the upper bounds of setup.cfg, in a
#              fresh environment; at the end `pip check` lists what the bounds exclude
#   --pin      as --newest, within the bounds; if everything passes, constraints/ has these versions for this Python
#
# Takes pythonVERSION on PATH if there is one, else a Debian root (tests/debian_root.sh). Clones, environments and roots
# stay in $LEXVL_ROOTS, by default ~/.cache/lexvl-roots, for the next call.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:-}
[[ $version =~ ^3\.[0-9]+$ ]] || { echo "error: --python expects a version such as 3.13, found '$version'" >&2; exit 2; }
supported=$(sed -n 's/^supported="\([^"]*\)".*/\1/p' runs/setup.sh)
case " $supported " in
  *" $version "*) ;;
  *) echo "error: LexVL does not support Python $version, expected one of $supported" >&2; exit 2 ;;
esac
shift
roots=${LEXVL_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/lexvl-roots}

newest=
case "${1:-}" in --newest | --pin) newest=$1; shift ;; esac
if [ "$newest" = --pin ] && [ $# != 0 ]; then echo "error: --pin runs all tests, found '$*'" >&2; exit 2; fi
project=${newest:+newest-}project
environ=(PYTHON="python$version" PROJECT="$project")
if [ -n "$newest" ]; then environ+=(LEXVL_UNPINNED=1 LEXVL_TEST_EXTRAS="${LEXVL_TEST_EXTRAS:-test-all}"); fi

copy() { # FOLDER: makes or updates the clone in FOLDER; its .venv stays
  local clone=$1/$project
  mkdir -p "$1"
  [ -d "$clone/.git" ] || git clone --quiet --no-checkout . "$clone"
  git -C "$clone" fetch --quiet "$PWD" HEAD
  git -C "$clone" checkout --quiet --force --detach FETCH_HEAD
  git -C "$clone" clean -ffdxq --exclude=.venv
  if [ "$newest" = --newest ]; then git -C "$clone" show HEAD:setup.cfg | sed 's/^\( .*\),<.*/\1/' >"$clone/setup.cfg"; fi
  [ -z "$(git status --porcelain)" ] || echo "note: changes that are not committed are not in the clone" >&2
}

# shellcheck disable=SC2016
steps='
cd "$PROJECT"
status=0
if [ -n "${LEXVL_UNPINNED:-}" ]; then
  rm -rf .venv
  bash tests/run.sh --lint || status=$?
  set -- --all "$@"
fi
bash tests/run.sh "$@" || status=$?
tests=$SECONDS
bash runs/quickstart.sh || status=$?
if [ -n "${LEXVL_UNPINNED:-}" ]; then
  .venv/bin/python tests/pins.py >versions.txt || status=$?
  git checkout --quiet setup.cfg
  .venv/bin/python -m pip install --quiet --no-deps --editable . && .venv/bin/python -m pip check || true
fi
echo "Python $PYTHON: tests $tests s, quickstart $((SECONDS - tests)) s, both with setting up; exit code $status"
exit $status'

if "python$version" -c '' 2>/dev/null; then
  folder=$roots/python$version
  copy "$folder"
  if [ -d ../shared ]; then ln -sfn "$PWD/../shared" "$folder/shared"; fi
  (cd "$folder" && env -u VIRTUAL_ENV -u PYTHONPATH "${environ[@]}" bash -c "$steps" - "$@")
else
  root=$roots/debian-$version
  folder=$root/lexvl
  bash tests/debian_root.sh "$version" "$root" true
  copy "$folder"
  bash tests/debian_root.sh "$version" "$root" env "${environ[@]}" bash -c "$steps" - "$@"
fi
if [ "$newest" = --pin ]; then
  mkdir -p constraints
  cp "$folder/$project/versions.txt" "constraints/py${version/./}.txt"
  echo "constraints/py${version/./}.txt has the versions of this run: look at them and commit"
fi
