# runs/*.sh and tests/run.sh source this file: it makes an environment with this project once, and then finds it.
# Usage: source runs/setup.sh EXTRAS   (for example: source runs/setup.sh minilm)
#
# Uses the active virtual environment if there is one, else .venv in the checkout. The first call makes .venv with the
# newest supported Python on PATH, or with the one that $PYTHON names; uv installs if it is on PATH, else pip.
#   LEXVL_TORCH=cpu|cuda   the build of torch; by default that of a machine without GPU if `nvidia-smi` shows none
#   LEXVL_UNPINNED=1       the newest versions that setup.cfg admits, not those of constraints/
# shellcheck shell=bash

[ -n "${1:-}" ] || { echo "error: setup.sh expects extras: source runs/setup.sh minilm" >&2; exit 2; }

supported="3.14 3.13 3.12 3.11" # the newest first, as python_requires in setup.cfg

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

refuse() { # SENTENCE
  echo "error: $1" >&2
  exit 1
}

python_version() { # INTERPRETER: prints 3.13; nothing if it cannot be run
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

is_supported() { # VERSION
  case " $supported " in *" ${1:-none} "*) return 0 ;; *) return 1 ;; esac
}

find_python() { # sets $found, the interpreter to make .venv with
  local candidate version seen="" wanted="LexVL needs one of Python $supported"
  if [ -n "${PYTHON:-}" ]; then
    version=$(python_version "$PYTHON")
    [ -n "$version" ] || refuse "PYTHON=$PYTHON cannot be run; $wanted"
    is_supported "$version" || refuse "PYTHON=$PYTHON is Python $version; $wanted"
    found=$PYTHON
    return
  fi
  # shellcheck disable=SC2086
  for candidate in $(printf 'python%s ' $supported) python3 python; do
    version=$(python_version "$candidate")
    if is_supported "$version"; then
      found=$candidate
      return
    fi
    [ -z "$version" ] || seen="${seen:+$seen, }$candidate is $version"
  done
  refuse "no supported Python on PATH (${seen:-found none}); $wanted: install one, or set PYTHON=/path/to/it"
}

make_environment() { # makes .venv
  local found
  find_python
  echo "making .venv with $("$found" --version)" >&2
  rm -rf .venv
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --no-python-downloads --python "$(command -v "$found")" .venv || refuse "uv cannot make .venv with $found"
  else
    "$found" -m venv .venv || {
      rm -rf .venv
      refuse "cannot make .venv with $found; on Debian and Ubuntu: apt-get install python$(python_version "$found")-venv"
    }
  fi
}

cpu_index=https://download.pytorch.org/whl/cpu # PyTorch's; the builds of PyPI for Linux have CUDA

torch_build() { # prints cpu; auto for the build of this machine's GPU; nothing for that of the configured index
  local build=${LEXVL_TORCH:-auto}
  if [ "$build" = auto ] && ! nvidia-smi -L >/dev/null 2>&1; then build=cpu; fi
  if [ "$build" = cuda ] || [ "$(uname -s)" != Linux ]; then return; fi
  if python -c "from urllib.request import urlopen; urlopen('$cpu_index/torch/', timeout=10)" >/dev/null 2>&1; then
    echo "$build"
  else
    echo "note: $cpu_index cannot be read: torch comes from the configured index, perhaps with CUDA (6 GB)" >&2
  fi
}

said() { # COMMAND ARGUMENTS: runs it; of its output, stderr gets what is downloaded, built and installed
  (
    set -o pipefail
    "$@" | while read -r line; do
      case $line in *.metadata*) ;; Downloading* | Building* | Installing*) echo "  $line" ;; esac
    done >&2
  )
}

install() { # EXTRAS, with the versions that were tested together where constraints/ has some for this Python
  local pins="constraints/py${version/./}.txt" build pip
  if [ -n "${LEXVL_UNPINNED:-}" ] || [ ! -f "$pins" ]; then pins=; fi
  case "${LEXVL_TORCH:-auto}" in auto | cpu | cuda) ;; *) refuse "LEXVL_TORCH=$LEXVL_TORCH, expected cpu or cuda" ;; esac
  build=$(torch_build)
  if [ -n "$uv" ]; then
    "$uv" pip install ${build:+--torch-backend=$build} --python "$VIRTUAL_ENV/bin/python" ${pins:+--constraint "$pins"} --editable ".[$1]" pip
    return
  fi
  pip=(python -m pip install --disable-pip-version-check --progress-bar off ${pins:+--constraint "$pins"})
  if [ "$build" = cpu ]; then # first and alone: this index has other packages too
    said "${pip[@]}" --no-deps --extra-index-url "$cpu_index" "$(sed -n 's/^ *\(torch[<>=].*\)/\1/p' setup.cfg)" || return
  fi
  said "${pip[@]}" --editable ".[$1]"
}

uv=$(command -v uv || true)
if [ -z "${VIRTUAL_ENV:-}" ]; then
  if [ ! -x .venv/bin/python ]; then
    make_environment
  fi
  # shellcheck disable=SC1091
  source .venv/bin/activate
fi
# Also where the variable is set, but not the PATH.
version=$(python_version "$VIRTUAL_ENV/bin/python")
[ -n "$version" ] || refuse "VIRTUAL_ENV=$VIRTUAL_ENV has no Python that runs: deactivate it, or unset VIRTUAL_ENV"
if [ -n "${PYTHON:-}" ] && [ "$(python_version "$PYTHON")" != "$version" ]; then
  refuse "$VIRTUAL_ENV is Python $version, but PYTHON=$PYTHON is another or cannot be run: remove or deactivate it, or unset PYTHON"
fi
PATH=$VIRTUAL_ENV/bin:$PATH
is_supported "$version" || refuse "$VIRTUAL_ENV is Python $version; LexVL needs one of Python $supported"

# The name of the mark depends on what is installed and on the folder of the checkout: an editable installation points there.
mark="$VIRTUAL_ENV/.lexvl-$1-$(cat setup.cfg setup.py pyproject.toml <(pwd) | cksum | tr ' ' -)"
if [ ! -e "$mark" ]; then
  echo "installing lexvl-anserini[$1] and its dependencies${uv:+ with uv} (some minutes the first time)" >&2
  install "$1" || refuse "lexvl-anserini[$1] cannot be installed; docs/platforms.md has the requirements"
  touch "$mark"
fi
