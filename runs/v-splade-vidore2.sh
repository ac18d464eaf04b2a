#!/usr/bin/env bash
# A published V-SPLADE on the English topics of ViDoRe v2: nDCG@5 of each data set and their mean, beside the printed one.
# Usage: bash runs/v-splade-vidore2.sh [--efficient] [--data-dir FOLDER]   FOLDER/vidore/<name>; default $LEXVL_DATA
set -euo pipefail
model=naver/v-splade-quality printed=0.4990 data=()
while [ $# -gt 0 ]; do
  case "$1" in
  --efficient) model=naver/v-splade-efficient printed=0.4658 ;;
  --data-dir) data=(--data-dir "${2:?--data-dir needs a folder}"); shift ;;
  *) echo "usage: bash runs/v-splade-vidore2.sh [--efficient] [--data-dir FOLDER]" >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh plots
model=${LEXVL_CHECKPOINT:-$model} # another folder of the same model

runs=()
for name in biomedical_lectures_v2 economics_reports_v2 esg_reports_human_labeled_v2 esg_reports_v2; do
  corpus=vidore/$name,english system=$name.$(basename "$model")
  python -m lexvl_anserini.encode --corpus "$corpus" --encoder v-splade --checkpoint "$model" ${data[@]+"${data[@]}"} --output "impacts/$system"
  python -m lexvl_anserini.index "impacts/$system" --index "indexes/$system"
  python -m lexvl_anserini.search --index "indexes/$system" --topics "$corpus" ${data[@]+"${data[@]}"} --output "runs/$system.trec"
  runs+=(--run "runs/$system.trec")
done
python -m eval.table "${runs[@]}" ${data[@]+"${data[@]}"} --measure nDCG@5 --ties trec_eval --average vidore-2 --no-efficiency --format markdown
echo "the mean that the README of the authors' repository prints: $printed"
