#!/usr/bin/env bash
# The whole line on the demo corpus: encode -> index -> search -> measure, for four systems, then one table.
# Usage: bash runs/quickstart.sh          everything goes to .quickstart/ ; a second call finds it done
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh minilm

out=${LEXVL_QUICKSTART:-.quickstart}

line() { # NAME ENCODER [options of encode]
  local name=$1 encoder=$2
  shift 2
  python -m lexvl_anserini.encode --corpus demo --encoder "$encoder" "$@" --output "$out/impacts/$name" >/dev/null
  python -m lexvl_anserini.index "$out/impacts/$name" --index "$out/indexes/$name" >/dev/null
  python -m lexvl_anserini.search --index "$out/indexes/$name" --topics demo/test --hits 100 --output "$out/runs/$name.trec" >/dev/null
}

SECONDS=0
line bag bag-of-tokens
line vdr vdr --checkpoint minilm
line sentence sentence --checkpoint minilm
line bm25 bm25

echo
echo "demo: 1,000 scenes; a document is four captions of a scene, a topic its fifth"
python -m eval.table --run "$out/runs/bm25.trec" --run "$out/runs/bag.trec" --run "$out/runs/vdr.trec" \
  --run "$out/runs/sentence.trec" --measure HitRate@1 --measure HitRate@10 --measure RR@10 --measure nDCG@10
echo
echo "what an untrained VDR over MiniLM finds for a sentence of yours:"
python -m lexvl_anserini.search --index "$out/indexes/vdr" --query "a ship on the sea in the moonlight" --hits 3 --texts
echo "done in $SECONDS s; everything is in $out/"
