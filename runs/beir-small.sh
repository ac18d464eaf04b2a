#!/usr/bin/env bash
# SciFact and NFCorpus with BM25, a bag of tokens, an untrained VDR over MiniLM, and dense MiniLM; one table.
# Usage: bash runs/beir-small.sh [--data-dir FOLDER]      FOLDER/beir/scifact, FOLDER/beir/nfcorpus; default: download
set -euo pipefail
case $#${1:-} in
0 | 2--data-dir) ;;
*) echo "usage: bash runs/beir-small.sh [--data-dir FOLDER]" >&2; exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh minilm

data=()
if [ "${1:-}" = "--data-dir" ]; then data=(--data-dir "$2"); fi

encode() { # DATASET NAME ENCODER [options of encode]: writes shards and index
  local dataset=$1 name=$1.$2 encoder=$3
  shift 3
  python -m lexvl_anserini.encode --corpus "beir/$dataset" --encoder "$encoder" "$@" ${data[@]+"${data[@]}"} --output "impacts/$name"
  python -m lexvl_anserini.index "impacts/$name" --index "indexes/$name"
}

search() { # DATASET INDEX-NAME RUN-NAME [options of search]
  local dataset=$1 index=indexes/$1.$2 run=runs/$1.$3.trec
  shift 3
  python -m lexvl_anserini.search --index "$index" --topics "beir/$dataset/test" "$@" ${data[@]+"${data[@]}"} --output "$run"
}

runs=()
for dataset in scifact nfcorpus; do
  encode $dataset bm25 bm25
  encode $dataset bag bag-of-tokens
  encode $dataset vdr vdr --checkpoint minilm
  encode $dataset sentence sentence --checkpoint minilm
  for system in bm25 bag vdr sentence; do search $dataset $system $system; done
  search $dataset vdr vdr-q64 --set query_topk=64
  for system in bm25 bag vdr vdr-q64 sentence; do runs+=(--run "runs/$dataset.$system.trec"); done
done

python -m eval.table "${runs[@]}" --measure nDCG@10 --measure Recall@100 --measure RR@10 --no-efficiency --format markdown
