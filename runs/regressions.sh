#!/usr/bin/env bash
# Measures this project's own numbers and the small tables of papers again, and stores them in runs/measured.json with date,
# versions and digests of models. Ends with exit code 1 if a number is further from the stated one than its tolerance
# (runs/expected); rows without data are skipped, and the table says why.
# Usage: bash runs/regressions.sh [TABLE ...] [--data-dir FOLDER] [--rows PATTERN] [other options of `lexvl reproduce`]
#
# FOLDER/beir/msmarco-dl19-pool, the judged pool of TREC DL 2019 in BEIR's layout, and FOLDER/flickr8k are the user's. What the
# families train on is drawn into FOLDER/demo if it is not there. 100 minutes of CPU time; `--rows BM25` takes a minute.
# Nothing of an earlier call is used again. `bash runs/trends.sh` calls this script for the tables of trends.yaml.
set -euo pipefail
case " $* " in *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$PWD runs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tables=(regressions-demo regressions-families regressions-limit regressions-photos regressions-speeds regressions-texts
  bm25-beir limit-table4 trec-runs-dl19 trec-runs-covid stair-table1 d2s-head fdt-section4-3)
case "${1:-}" in "" | -*) ;; *) tables=() ;; esac
data=${LEXVL_DATA:-$HOME/.cache/lexvl} next=
for option in "$@"; do
  [ "$next" != --data-dir ] || data=$option
  next=$option
done
pool=()
[ ! -d "$data/beir/msmarco-dl19-pool" ] || case " ${tables[*]-} $* " in
*" regressions-texts "*) pool=(--corpus "msmarco-dl19-pool=beir:$data/beir/msmarco-dl19-pool") ;;
esac
source "$runs/setup.sh" photos,train
cd "$here"
case " ${tables[*]-} $* " in
*" regressions-families "*) [ -e "$data/demo/val.json" ] || python "$runs/../tools/world" draw val --data-dir "$data" ;;
esac
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
# bash 3 refuses to expand an empty array.
lexvl reproduce ${tables[@]+"${tables[@]}"} "$@" ${pool[@]+"${pool[@]}"} --output "$output" --record "$runs/measured.json" --agreeing
