#!/usr/bin/env bash
# SciFact and NFCorpus with BM25, a bag of tokens, an untrained VDR over MiniLM, and dense MiniLM; one table.
# Usage: bash runs/beir-small.sh [--data-dir FOLDER]      FOLDER/beir/scifact and FOLDER/beir/nfcorpus, else downloaded
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh minilm

data=()
if [ "${1:-}" = "--data-dir" ]; then data=(--data-dir "$2"); fi

line() { # DATASET NAME ENCODER [options of encode]
  local dataset=$1 name=$1.$2 encoder=$3
  shift 3
  python -m lexvl_anserini.encode --corpus "beir/$dataset" --encoder "$encoder" "$@" "${data[@]}" --output "impacts/$name"
  python -m lexvl_anserini.index "impacts/$name" --index "indexes/$name"
  python -m lexvl_anserini.search --index "indexes/$name" --topics "beir/$dataset/test" "${data[@]}" --hits 1000 --output "runs/$name.trec"
}

runs=()
for dataset in scifact nfcorpus; do
  line $dataset bm25 bm25
  line $dataset bag bag-of-tokens
  line $dataset vdr vdr --checkpoint minilm
  line $dataset vdr-q64 vdr --checkpoint minilm --set query_topk=64
  line $dataset sentence sentence --checkpoint minilm
  for name in bm25 bag vdr vdr-q64 sentence; do runs+=(--run "runs/$dataset.$name.trec"); done
done

python -m eval.table "${runs[@]}" --measure nDCG@10 --measure Recall@100 --measure RR@10 "${data[@]}" --format markdown
