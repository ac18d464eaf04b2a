#!/usr/bin/env bash
# Makes the environment and calls `lexvl demo`: the whole line on the images of the demo, in both directions; then one
# table, three explained queries, a contact sheet, and a sheet of real photos.
# Usage: bash runs/quickstart.sh          writes to .quickstart/ ; a second call finds the files and only prints
set -euo pipefail
case " $* " in *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh photos,plots
lexvl demo --output "${LEXVL_QUICKSTART:-.quickstart}" "$@"
