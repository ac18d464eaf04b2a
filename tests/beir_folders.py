"""Corpora in BEIR's layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_beir(
    folder: Path, documents: Mapping[str, str], topics: Mapping[str, str], judged: Iterable[tuple[str, str]]
) -> Path:
    """Documents and topics by id, with pairs of a topic and its relevant document."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", topics)):
        rows = (json.dumps({"_id": item_id, "title": "", "text": text}) for item_id, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    lines = "".join(f"{query_id}\t{doc_id}\t1\n" for query_id, doc_id in judged)
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return folder
