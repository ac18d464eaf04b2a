#!/usr/bin/env bash
# Makes the environment and calls `lexvl reproduce`: tables of papers, measured and compared with what is printed.
# Usage: bash runs/reproduce.sh TABLE [options]      the scripts of single tables call it; --all --dry-run lists them
# A dry run and --help install nothing: they need an environment that an earlier call, or the user, has made. An option
# that `lexvl reproduce` does not have is refused before anything is installed.
set -euo pipefail
here=$PWD runs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
options="--agreeing --all --as-published --batch-size --checkpoint --corpus --data-dir --device --dry-run --format --help \
--limit --output --overwrite --record --results --rows --strict --verbose"
for word in "$@"; do
  case $word in -*) case " $options " in *" ${word%%=*} "*) ;; *)
    echo "error: no such option: $word; options of lexvl reproduce: $options" >&2
    exit 2
    ;;
  esac ;; esac
done
case " $* " in
*" --dry-run "* | *" --help "*)
  PATH=${VIRTUAL_ENV:-${runs%/*}/.venv}/bin:$PATH
  command -v lexvl >/dev/null || case " $* " in
  *" --help "*)
    echo "lexvl reproduce $1: options $options; docs/plugins/papers.md explains them"
    exit
    ;;
  *)
    echo "error: lexvl is not installed, and a dry run installs nothing; leave out --dry-run, or: pip install -e '${runs%/*}[minilm]'" >&2
    exit 1
    ;;
  esac
  ;;
*) source "$runs/setup.sh" minilm ;;
esac
cd "$here"
lexvl reproduce "$@"
