#!/usr/bin/env bash
# Makes the environment and calls `lexvl reproduce`: tables of papers, measured and compared with what is printed.
# Usage: bash runs/reproduce.sh TABLE [options]      the scripts of single tables call it; --all --dry-run lists them
# A dry run installs nothing: it needs an environment that an earlier call, or the user, has made.
set -euo pipefail
here=$PWD runs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case " $* " in
*" --dry-run "*)
  PATH=${VIRTUAL_ENV:-${runs%/*}/.venv}/bin:$PATH
  command -v lexvl >/dev/null || {
    echo "error: lexvl is not installed, and a dry run installs nothing; leave out --dry-run, or: pip install -e '${runs%/*}[minilm]'" >&2
    exit 1
  }
  ;;
*) source "$runs/setup.sh" minilm ;;
esac
cd "$here"
lexvl reproduce "$@"
