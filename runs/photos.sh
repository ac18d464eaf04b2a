#!/usr/bin/env bash
# Makes the environment and calls `lexvl photos`: encodes a folder of your own pictures, indexes it, answers queries.
# Usage: bash runs/photos.sh FOLDER ["two dogs on a beach" ...]    writes to lexvl-photos/ in the working folder
set -euo pipefail
case " $* " in *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# -gt 0 ] || { echo 'usage: bash runs/photos.sh FOLDER ["two dogs on a beach" ...]' >&2; exit 2; }
[ -e "$1" ] || { echo "runs/photos.sh: $1: no such folder" >&2; exit 2; }
here=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" photos,plots
cd "$here"
lexvl photos "$@"
