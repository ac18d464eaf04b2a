#!/usr/bin/env bash
# Trains the pair of photos in the package: four dense pairs with other seeds beside the packaged photos-dense, then photos-vdr,
# which the five teach. Writes to training/.
# Usage: bash runs/photos-vdr.sh [options of train, such as --data-dir FOLDER, --device DEVICE, --set data.held_out=12]
#
# FOLDER/flickr8k has the photos. The script goes on where it stopped.
set -euo pipefail
case " $* " in *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh photos,train

if [ ! -s imagenet-classes.json ]; then
  python -m pip install --quiet --no-deps --target training/names open_clip_torch
  python -c "import json, runpy; print(json.dumps(runpy.run_path('training/names/open_clip/zero_shot_metadata.py')['IMAGENET_CLASSNAMES']))" \
    >imagenet-classes.json.part
  mv imagenet-classes.json.part imagenet-classes.json
fi
for seed in 2 3 4 5; do
  python -m lexvl_plugins.train.command --recipe photos-dense --set seed=$seed --output training/photos-dense-$seed --cache training/cache "$@"
done
python -m lexvl_plugins.train.command --recipe photos-vdr --output training/photos-vdr --cache training/cache "$@"
