#!/usr/bin/env bash
# Trains DPR, VDR, SVDR and SPLADE over MiniLM on SciFact and NFCorpus, and measures them there and on LIMIT-small; one table per corpus.
# Usage: bash runs/texts.sh [--data-dir FOLDER] [--device DEVICE] [--hours N] [--seed N]      N hours of training per model
#
# FOLDER/beir/scifact, FOLDER/beir/nfcorpus, FOLDER/beir/limit-small; the first two are downloaded where they are missing.
# The script goes on where it stopped; a model whose training is not finished is left out of the tables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=() device=() hours=() seed=()
while [ $# -gt 0 ]; do
  case "$1" in
    --data-dir) data=(--data-dir "$2") ;;
    --device) device=(--device "$2") ;;
    --hours) hours=(--hours "$2") ;;
    --seed) seed=(--set "seed=$2") ;;
    *) echo "runs/texts.sh: $1: unknown option; expected --data-dir, --device, --hours or --seed" >&2; exit 2 ;;
  esac
  shift 2
done
source runs/setup.sh minilm,train
# bash 3 refuses to expand an empty array.
data=(${data[@]+"${data[@]}"}) device=(${device[@]+"${device[@]}"})
# Runs of another seed have their own folders.
suffix=${seed[1]:+.${seed[1]#seed=}}

encode() { # DATASET NAME ENCODER [options of encode]: writes shards and index
  local dataset=$1 name=$1.$2 encoder=$3
  shift 3
  python -m lexvl_anserini.encode --corpus "beir/$dataset" --encoder "$encoder" "$@" ${data[@]+"${data[@]}"} --output "impacts/$name"
  python -m lexvl_anserini.index "impacts/$name" --index "indexes/$name"
}

search() { # DATASET SPLIT INDEX-NAME RUN-NAME [options of search]
  local topics=beir/$1/$2 index=indexes/$1.$3 run=runs/$1.$2.$4.trec
  shift 4
  python -m lexvl_anserini.search --index "$index" --topics "$topics" "$@" ${data[@]+"${data[@]}"} --output "$run"
}

mkdir -p mined
for dataset in scifact nfcorpus; do
  encode $dataset bm25 bm25
  search $dataset train bm25 bm25
  [ -e mined/$dataset.jsonl ] || python -m lexvl_plugins.train.mine --run runs/$dataset.train.bm25.trec --first-rank 2 --depth 40 \
    --number 10 ${data[@]+"${data[@]}"} --output mined/$dataset.jsonl
done

for recipe in vdr-text-small svdr-text-small splade-small dpr-small; do
  python -m lexvl_plugins.train.command --recipe "runs/recipes/$recipe.yaml" --output "training/$recipe$suffix" \
    ${seed[@]+"${seed[@]}"} ${device[@]+"${device[@]}"} ${hours[@]+"${hours[@]}"}
done

tables=()
for dataset in scifact nfcorpus limit-small; do
  ids=()
  if [ $dataset = limit-small ]; then ids=(--escape-ids); fi
  runs=(bm25)
  encode $dataset bm25 bm25 ${ids[@]+"${ids[@]}"}
  search $dataset test bm25 bm25
  common=(--max-length 256 ${ids[@]+"${ids[@]}"} ${device[@]+"${device[@]}"})
  for recipe in vdr-text-small svdr-text-small splade-small dpr-small; do
    model=training/$recipe$suffix/model
    if [ ! -e "$model" ]; then continue; fi
    kind=${recipe%-small} kind=${kind%-text}
    name=$kind$suffix
    case $kind in
      vdr | svdr)
        encode $dataset "$name" "$kind" --checkpoint "$model" "${common[@]}" --set mode=full
        encode $dataset "$name-beta" "$kind" --checkpoint "$model" "${common[@]}" --set mode=beta
        search $dataset test "$name" "$name"
        search $dataset test "$name" "$name-alpha" --set mode=alpha
        search $dataset test "$name-beta" "$name-beta"
        runs+=("$name" "$name-alpha" "$name-beta")
        ;;
      splade)
        encode $dataset "$name" splade --checkpoint "$model" "${common[@]}"
        search $dataset test "$name" "$name"
        runs+=("$name")
        ;;
      dpr)
        encode $dataset "$name" dpr --checkpoint "$model/document" --set "query_checkpoint=$model/query" "${common[@]}"
        search $dataset test "$name" "$name"
        runs+=("$name")
        ;;
    esac
  done
  for run in "${runs[@]}"; do tables+=(--run "runs/$dataset.test.$run.trec"); done
done
python -m eval.table "${tables[@]}" --measure nDCG@10 --no-efficiency --format markdown
