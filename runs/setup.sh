# runs/*.sh and tests/run.sh source this file: it makes an environment with this project once, and then finds it.
# Usage: source runs/setup.sh EXTRAS   (for example: source runs/setup.sh minilm)
#
# Uses the active virtual environment if there is one, else .venv in the checkout. $PYTHON names another interpreter.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

if [ -z "${VIRTUAL_ENV:-}" ]; then
  if [ ! -x .venv/bin/python ]; then
    found=
    for candidate in ${PYTHON:-} python3.11 python3 python; do
      if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        found=$candidate
        break
      fi
    done
    if [ -z "$found" ]; then
      echo "error: no Python 3.11 found (pyserini 1.6 needs exactly that); install it or set PYTHON=/path/to/python3.11" >&2
      exit 1
    fi
    echo "making .venv with $("$found" --version)" >&2
    "$found" -m venv .venv || { echo "error: cannot make .venv; on Debian: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }
  fi
  # shellcheck disable=SC1091
  source .venv/bin/activate
fi

# The name of the mark depends on setup.cfg and on the folder of the checkout: an editable installation points there.
mark="$VIRTUAL_ENV/.lexvl-$1-$(cat setup.cfg <(pwd) | sha256sum | cut -c1-16)"
if [ ! -e "$mark" ]; then
  echo "installing lexvl-anserini[$1] and its dependencies (some minutes the first time)" >&2
  python -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
  touch "$mark"
fi

# Cache of the numba functions of ranx: only the first evaluation compiles them.
export NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lexvl-numba}"
