#!/usr/bin/env bash
# Tests and quickstart with another Python, on a clean clone of the commit that is checked out.
# Usage: bash tests/other_python.sh VERSION [arguments of tests/run.sh]       (bash tests/run.sh --python VERSION ...)
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

copy() { # FOLDER: makes or updates the clone FOLDER/project; its .venv stays
  local project=$1/project
  mkdir -p "$1"
  [ -d "$project/.git" ] || git clone --quiet --no-checkout . "$project"
  git -C "$project" fetch --quiet "$PWD" HEAD
  git -C "$project" checkout --quiet --force --detach FETCH_HEAD
  git -C "$project" clean -ffdxq --exclude=.venv
  [ -z "$(git status --porcelain)" ] || echo "note: changes that are not committed are not in the clone" >&2
}

# shellcheck disable=SC2016
steps='
cd project
status=0
bash tests/run.sh "$@" || status=$?
tests=$SECONDS
bash runs/quickstart.sh || status=$?
echo "Python $PYTHON: tests $tests s, quickstart $((SECONDS - tests)) s, both with setting up; exit code $status"
exit $status'

if "python$version" -c '' 2>/dev/null; then
  copy "$roots/python$version"
  if [ -d ../shared ]; then ln -sfn "$PWD/../shared" "$roots/python$version/shared"; fi
  cd "$roots/python$version"
  exec env -u VIRTUAL_ENV -u PYTHONPATH PYTHON="python$version" bash -c "$steps" - "$@"
fi
root=$roots/debian-$version
bash tests/debian_root.sh "$version" "$root" true
copy "$root/lexvl"
exec bash tests/debian_root.sh "$version" "$root" env PYTHON="python$version" bash -c "$steps" - "$@"
