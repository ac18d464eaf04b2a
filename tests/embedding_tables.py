"""Writes precomputed vectors in the layout of the hub: tables `id`, `emb` and Karpathy's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet


def write_table(path: Path, ids: Sequence[str], vectors: np.ndarray) -> None:
    """One table; numbers as doubles, as pandas writes lists of Python floats."""
    parquet.write_table(pa.table({"id": pa.array(ids), "emb": pa.array(vectors.astype(float).tolist())}), path)


def write_embeddings(
    folder: Path,
    images: Mapping[str, np.ndarray],
    texts: Mapping[str, np.ndarray],
    captions: Mapping[str, Mapping[str, str]] | None = None,
    features: str = "",
    split: str = "test",
) -> Path:
    """A folder of embeddings.

    Args:
        images: vector by image id.
        texts: vector by caption id.
        captions: by image id, the text of each of its captions by caption id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, vectors in (("img_embs", images), ("text_embs", texts)):
        write_table(folder / f"{name}{features}.parquet", list(vectors), np.stack(list(vectors.values())))
    if captions is not None:
        records = [
            {
                "imgid": image,
                "filename": f"{image}.jpg",
                "split": split,
                "sentences": [{"raw": text, "sentid": caption} for caption, text in texts_of.items()],
            }
            for image, texts_of in captions.items()
        ]
        (folder / "dataset_meta.json").write_text(json.dumps({"images": records}))
    return folder


def write_golden(folder: Path, about: Mapping, images: np.ndarray, texts: np.ndarray, features: str = "") -> Path:
    """The corpus of a golden training set: `about` has text_ids, image_ids, texts and pairs (text, image)."""
    raw = dict(zip(about["text_ids"], about["texts"], strict=True))
    captions: dict[str, dict[str, str]] = {image: {} for image in about["image_ids"]}
    for text, image in about["pairs"]:
        captions[image][text] = raw[text]
    return write_embeddings(
        folder,
        dict(zip(about["image_ids"], images, strict=True)),
        dict(zip(about["text_ids"], texts, strict=True)),
        captions,
        features,
    )
