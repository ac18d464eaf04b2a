#!/usr/bin/env bash
# Tries claims of the papers as far as two cores can: small trainings of each family on 1,200 photos of Flickr8k, with equal budgets and
# three seeds each, measured on its validation photos (runs/expected/trends.yaml says what came out), and stored in runs/measured.json.
# Usage: bash runs/trends.sh [TABLE ...] [--data-dir FOLDER] [--rows PATTERN] [other options of `lexvl reproduce`]
#
# FOLDER/flickr8k has the photos and Karpathy's file, FOLDER/beir/scifact the texts. Joint's dense pair is trained first, on 600 other
# photos, into training/trends-pair. About 2.5 hours of CPU time; `trends-table5`, which trains nothing, takes two minutes. Ends with
# exit code 1 if a number is further from the stated one than the spread of its seeds allows.
set -euo pipefail
runs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) here=$PWD
case " $* " in *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;; esac
tables=(trends-twins trends-weights trends-grounding trends-figure8 trends-joint trends-lexlip trends-table5 trends-figure2 trends-projection)
case "${1:-}" in "" | -*) ;; *) tables=() ;; esac
data=${LEXVL_DATA:-$HOME/.cache/lexvl} next=
for option in "$@"; do
  [ "$next" != --data-dir ] || data=$option
  next=$option
done
case " ${tables[*]-} $* " in
*" trends-joint "*)
  source "$runs/setup.sh" photos,train
  cd "$here"
  # The pair's photos are 600 of the training split that Joint does not train on, in a data folder that links to the images.
  python - "$data/flickr8k" training/trends-data/flickr8k <<'PAIR'
import json, sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
captions = "dataset_flickr8k.json"
content = json.loads((source / captions).read_text(encoding="utf-8"))
train = [image for image in content["images"] if image["split"] == "train"]
target.mkdir(parents=True, exist_ok=True)
(target / captions).write_text(json.dumps({**content, "images": train[1200:1800]}), encoding="utf-8")
for path in source.iterdir():
    if path.name != captions and not (target / path.name).exists():
        (target / path.name).symlink_to(path.resolve())
PAIR
  python -m lexvl_plugins.train.command --recipe clip-small --output training/trends-pair --data-dir training/trends-data \
    --set seed=1 --set data.validation=null --set views=1 --set augmentation.flip=false \
    --set model.text.dropout=0.3 --set model.image.dropout=0.4 --set optimisation.steps=120 \
    --set optimisation.batch_size=128 --set optimisation.captions_per_image=1 --set optimisation.average=0.98
  ;;
esac
# bash 3 refuses to expand an empty array.
bash "$runs/regressions.sh" ${tables[@]+"${tables[@]}"} "$@"
