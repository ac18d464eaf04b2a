#!/usr/bin/env bash
# Trains every family of texts and images on Flickr8k over the same frozen networks, and measures them on its validation split:
# R@1/5/10 in both directions, active terms, and in how many photos the first terms are words of their captions.
# Usage: bash runs/families.sh [--data-dir FOLDER] [--device DEVICE] [--hours N] [--seed N]      N hours of training per model
#
# FOLDER/flickr8k has the photos, FOLDER/captions the captions. The script goes on where it stopped; a model whose training is not
# finished is left out of the tables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=() device=() hours=() seed=()
while [ $# -gt 0 ]; do
  case "$1" in
    --data-dir) data=(--data-dir "$2") ;;
    --device) device=(--device "$2") ;;
    --hours) hours=(--hours "$2") ;;
    --seed) seed=(--set "seed=$2") ;;
    *) echo "runs/families.sh: $1: unknown option; expected --data-dir, --device, --hours or --seed" >&2; exit 2 ;;
  esac
  shift 2
done
source runs/setup.sh photos,train
data=(${data[@]+"${data[@]}"}) device=(${device[@]+"${device[@]}"})
# Runs of another seed have their own folders.
suffix=${seed[1]:+.${seed[1]#seed=}}

train() { # RECIPE [options of train]: writes training/RECIPE, and shares what the networks make of photos and captions
  local recipe=$1
  shift
  python -m lexvl_plugins.train.command --recipe "runs/recipes/$recipe.yaml" --output "training/$recipe$suffix" --cache training/cache \
    ${seed[@]+"${seed[@]}"} ${data[@]+"${data[@]}"} ${device[@]+"${device[@]}"} ${hours[@]+"${hours[@]}"} "$@"
}

measure() { # NAME RECIPE ENCODER [options of search]: a run in each direction; rows with other options share shards and indexes
  local name=$1 recipe=$2 encoder=$3 direction short
  shift 3
  [ -e "training/$recipe$suffix/model" ] || return 0
  for direction in text-to-image image-to-text; do
    [ $direction = text-to-image ] || [ $# = 0 ] || continue # options of search are those of texts as queries
    short=$recipe$suffix.$direction
    python -m lexvl_anserini.encode --corpus flickr8k/val --direction $direction --encoder "$encoder" \
      --checkpoint "training/$recipe$suffix/model" ${data[@]+"${data[@]}"} ${device[@]+"${device[@]}"} --output "impacts/$short"
    python -m lexvl_anserini.index "impacts/$short" --index "indexes/$short"
    python -m lexvl_anserini.search --index "indexes/$short" ${data[@]+"${data[@]}"} ${device[@]+"${device[@]}"} "$@" \
      --output "runs/$name$suffix.$direction.trec"
  done
}


train clip-small
for recipe in vdr-crossmodal stair-single stair lexlip v-splade fdt; do train $recipe-small; done
for recipe in d2s joint; do
  [ ! -e "training/clip-small$suffix/model" ] || train $recipe-small --set "model.pair=training/clip-small$suffix/model"
done

measure clip clip-small dense-crossmodal
measure vdr vdr-crossmodal-small vdr-crossmodal
measure vdr-alpha vdr-crossmodal-small vdr-crossmodal --set mode=alpha
measure stair-single stair-single-small stair
measure stair-single-own stair-single-small stair --set text_mask=own
measure stair stair-small stair
measure stair-own stair-small stair --set text_mask=own
measure lexlip lexlip-small lexlip
measure v-splade v-splade-small stair --set text_mask=own
measure fdt fdt-small fdt
measure d2s d2s-small d2s
measure d2s-own d2s-small d2s --set text=words
measure joint joint-small joint
measure joint-own joint-small joint --set text=words

for direction in text-to-image image-to-text; do
  runs=()
  for name in clip vdr vdr-alpha stair-single stair-single-own stair stair-own lexlip v-splade fdt d2s d2s-own joint joint-own; do
    run=runs/$name$suffix.$direction.trec
    [ ! -e "$run" ] || runs+=(--run "$run" --label "$name")
  done
  [ ${#runs[@]} = 0 ] || python -m eval.flickr8k "${runs[@]}" ${data[@]+"${data[@]}"} --split val --no-efficiency --format markdown
done
for recipe in vdr-crossmodal stair-single stair lexlip v-splade fdt d2s joint; do
  shards=impacts/$recipe-small$suffix.text-to-image
  if [ -e "$shards" ]; then
    python -m eval.analyses.terms --sparsity --shards "$shards" ${data[@]+"${data[@]}"} ${device[@]+"${device[@]}"} --format markdown
    [ $recipe = fdt ] || python -m eval.analyses.interpretability --shards "$shards" ${data[@]+"${data[@]}"} --format markdown
  fi
done
