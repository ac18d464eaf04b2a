"""A corpus of any size made of demo captions, in BEIR's layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson


def write_corpus(folder: Path, documents: int) -> None:
    """That many documents under new ids, one query, one judgement."""
    from lexvl_anserini.data.dataset import load_dataset

    def endless() -> Iterator[str]:
        while True:
            for document in load_dataset("demo", split="train", direction="text-to-text").documents():
                yield document.contents

    folder.mkdir(parents=True)
    with open(folder / "corpus.jsonl", "wb") as out:
        for number, text in enumerate(islice(endless(), documents)):
            out.write(orjson.dumps({"_id": f"d{number}", "title": "", "text": text}) + b"\n")
    (folder / "queries.jsonl").write_bytes(orjson.dumps({"_id": "q0", "text": "a boat"}) + b"\n")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
