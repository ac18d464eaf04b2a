#!/usr/bin/env bash
# The whole line on the images of the demo: encode -> index -> search -> measure, in both directions; then one table,
# three explained queries, and a contact sheet.
# Usage: bash runs/quickstart.sh          writes to .quickstart/ ; a second call finds the files and only prints
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh minilm

out=${LEXVL_QUICKSTART:-.quickstart}

index() { # NAME DIRECTION [options of encode]
  local name=$1 direction=$2
  shift 2
  python -m lexvl_anserini.encode --corpus demo --direction "$direction" "$@" --output "$out/impacts/$name" >/dev/null
  python -m lexvl_anserini.index "$out/impacts/$name" --index "$out/indexes/$name" >/dev/null
}

check() { # NAME
  python -m lexvl_anserini.index "$out/impacts/$1" --index "$out/indexes/$1" --check >/dev/null
}

search() { # RUN INDEX [options of search]
  local run=$1 index=$2
  shift 2
  python -m lexvl_anserini.search --index "$out/indexes/$index" --hits 100 "$@" --output "$out/runs/$run.trec" >/dev/null
}

SECONDS=0
for direction in text-to-image image-to-text; do
  for encoder in vdr-crossmodal dense-crossmodal; do
    index "$direction.$encoder" $direction --encoder $encoder --checkpoint "demo-${encoder%-crossmodal}"
    search "$direction.$encoder" "$direction.$encoder"
  done
  check "$direction.vdr-crossmodal"
done
search text-to-image.alpha text-to-image.vdr-crossmodal --set mode=alpha
index captions.bm25 text-to-text --encoder bm25
search captions.bm25 captions.bm25

echo
echo "demo test split: 1,000 drawn scenes, 5,000 captions; VDR and its dense twin were trained on other scenes"
python -m eval.demo --label "VDR, Lucene" --label "dense twin, FAISS" --label "VDR alpha, Lucene" \
  --label "VDR, Lucene" --label "dense twin, FAISS" --label "BM25 over captions" \
  --run "$out/runs/text-to-image.vdr-crossmodal.trec" --run "$out/runs/text-to-image.dense-crossmodal.trec" \
  --run "$out/runs/text-to-image.alpha.trec" --run "$out/runs/image-to-text.vdr-crossmodal.trec" \
  --run "$out/runs/image-to-text.dense-crossmodal.trec" --run "$out/runs/captions.bm25.trec"
echo "queries of alpha are the bare words of a caption: no text encoder at query time (ms/query is the index alone)"
echo "BM25 reads no images: the fifth caption of each image is the query, its other four captions are the document"

for query in "a red boat under the moon" "two dogs on the beach" "a teddy bear in a bedroom"; do
  echo
  echo "\"$query\""
  python -m lexvl_anserini.explain --index "$out/indexes/text-to-image.vdr-crossmodal" --query "$query" --hits 3 --terms 6
done

python -m eval.sheet --run "$out/runs/text-to-image.vdr-crossmodal.trec" \
  --index "$out/indexes/text-to-image.vdr-crossmodal" --output "$out/contact-sheet.png" >/dev/null
echo
echo "document ID is the image ID.png in ${LEXVL_DATA:-~/.cache/lexvl}/demo/images-*-test.tar"
echo "queries, their first images and terms: $out/contact-sheet.png"
echo "done in $SECONDS s; everything is in $out/"
