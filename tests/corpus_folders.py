"""Corpora on disk for tests of what reads them: BEIR's layout, Karpathy's JSON with pictures, vectors, tar archives."""

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

CORPUS = (
    '{"_id": "d1", "title": "A", "text": "one"}\n{"_id": "d2", "text": "two", "metadata": {"url": "u"}, "year": 3}\n'
)
QUERIES = '{"_id": "q3", "text": "train"}\n{"_id": "q2", "text": "second"}\n{"_id": "q1", "text": "first"}\n'
HEADER = "query-id\tcorpus-id\tscore\n"
COLOURS = ("red", "green", "blue")  # the pictures of `coloured_coco`


def coloured_coco(folder: Path) -> Path:
    """A data folder with three drawn images of two captions each, as COCO."""
    from PIL import Image

    (folder / "coco/images").mkdir(parents=True)
    images = []
    for number, colour in enumerate(COLOURS):
        Image.new("RGB", (48, 48), colour).save(folder / f"coco/images/{colour}.png")
        captions = (f"a {colour} picture", f"the {colour} picture")
        images.append(captioned_image(number, texts=captions, first=2 * number, filename=f"{colour}.png"))
    (folder / "coco/dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return folder


def pack_text(path: Path, content: str | bytes) -> Path:
    """Writes a text, packed as the suffix says."""
    pack: Mapping[str, Any] = {".gz": gzip.compress, ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True)}
    path.write_bytes(pack.get(path.suffix.lower(), bytes)(content if isinstance(content, bytes) else content.encode()))
    return path


def json_lines(texts: Mapping[str, str]) -> str:
    return "".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())


def beir_folder(
    folder: Path,
    corpus: str | bytes | None = CORPUS,
    queries: str | None = QUERIES,
    test: str | None = "q1\td1\t1\nq2\td2\t0\n",
    train: str | None = "q3\td1\t2\n",
) -> Path:
    """A folder in BEIR's layout, without the files that are None."""
    (folder / "qrels").mkdir(parents=True)
    for name, content in {
        "corpus.jsonl": corpus,
        "queries.jsonl": queries,
        "qrels/test.tsv": test and HEADER + test,
        "qrels/train.tsv": train and HEADER + train,
    }.items():
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_beir(
    folder: Path, documents: Mapping[str, str], topics: Mapping[str, str], judged: Iterable[tuple[str, str]]
) -> Path:
    """BEIR's layout of texts by id; a topic's relevant documents are `judged` pairs."""
    qrels = "".join(f"{query_id}\t{doc_id}\t1\n" for query_id, doc_id in judged)
    return beir_folder(folder, json_lines(documents), json_lines(topics), qrels, None)


def captioned_image(
    number: int, split: str = "test", texts: Iterable[str] = "abcde", first: int | None = None, **others: Any
) -> dict[str, Any]:
    """A record of Karpathy's JSON; its captions are numbered from `first`, ten times the image's number by default."""
    first = 10 * number if first is None else first
    sentences = [
        {"raw": text, "imgid": number, "sentid": first + place, "tokens": [text]} for place, text in enumerate(texts)
    ]
    record = {"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": sentences}
    return record | {"sentids": [sentence["sentid"] for sentence in sentences]} | others


def karpathy_folder(
    root: Path, name: str, images: Iterable[Mapping[str, Any]], folder: str | None = None, pictures: bool = True
) -> str:
    """Writes `dataset_NAME.json` into a folder of the root, and an empty picture of each record; returns the root."""
    home = root / (folder or name)
    home.mkdir(parents=True, exist_ok=True)
    (home / f"dataset_{name}.json").write_text(json.dumps({"images": images, "dataset": name}))
    if pictures:
        names = (f"{record.get('filepath', '.')}/{record['filename']}" for record in images)
        gallery_of(root / name / "images", *names)
    return str(root)


def gallery_of(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"-")


def tar_of(path: Path, members: Mapping[str, bytes], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_table(path: Path, ids: Sequence[str], vectors: np.ndarray) -> None:
    """One table of vectors; numbers as doubles, as pandas writes lists of Python floats."""
    parquet.write_table(pa.table({"id": pa.array(ids), "emb": pa.array(vectors.astype(float).tolist())}), path)


def write_embeddings(
    folder: Path,
    images: Mapping[str, np.ndarray],
    texts: Mapping[str, np.ndarray],
    captions: Mapping[str, Mapping[str, str]] | None = None,
    features: str = "",
    split: str = "test",
) -> Path:
    """A folder of vectors by id, in the layout of the hub; `captions` has the texts by image id and caption id."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, vectors in (("img_embs", images), ("text_embs", texts)):
        write_table(folder / f"{name}{features}.parquet", list(vectors), np.stack(list(vectors.values())))
    if captions is not None:
        records = []
        for image, raw in captions.items():
            sentences = [{"raw": text, "sentid": caption} for caption, text in raw.items()]
            records.append({"imgid": image, "filename": f"{image}.jpg", "split": split, "sentences": sentences})
        (folder / "dataset_meta.json").write_text(json.dumps({"images": records}))
    return folder


def write_golden(folder: Path, about: Mapping, images: np.ndarray, texts: np.ndarray, features: str = "") -> Path:
    """The corpus of a golden training set: `about` has text_ids, image_ids, texts and pairs (text, image)."""
    raw = dict(zip(about["text_ids"], about["texts"], strict=True))
    captions: dict[str, dict[str, str]] = {image: {} for image in about["image_ids"]}
    for text, image in about["pairs"]:
        captions[image][text] = raw[text]
    vectors = [dict(zip(about[key], rows, strict=True)) for key, rows in (("image_ids", images), ("text_ids", texts))]
    return write_embeddings(folder, *vectors, captions, features)
