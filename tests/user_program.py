"""A program as users write it, for `mypy --strict`; each `assert_type` fails where a public function gives Any."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

from eval.measures.metrics import evaluate, means
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document, Measurement, Qrel, ScoredDoc, Topic
from lexvl_anserini.runs.order import RankedList, as_frame
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index, search_index
from lexvl_anserini.shards.writing import write_impacts

if TYPE_CHECKING:
    from torch import Tensor

TEXTS = {"d1": "a dog runs on the beach", "d2": "a ship at night", "d3": "two men in a boat"}


def corpus() -> Dataset:
    def documents() -> Iterator[Document]:
        return (Document(doc_id, text=text) for doc_id, text in TEXTS.items())

    topics = [Topic("q1", "a boat"), Topic("q2", "dogs")]
    qrels = [Qrel("q1", "d3", 1), Qrel("q2", "d1", 1)]
    return Dataset("mine", "", documents, lambda: iter(topics), lambda: iter(qrels))


def indexed(model: Encoder, folder: Path) -> Index:
    with progress_bar("encode", len(TEXTS)) as advance:
        manifest = write_impacts(corpus(), model, folder / "shards", Quantiser.named(bits=8), progress=advance)
    assert_type(manifest, Manifest)
    assert_type(manifest.counts.documents, int)
    return build_index(folder / "shards", folder / "index")


def main(checkpoint: str, folder: Path) -> int:
    try:
        model = load_encoder("bag-of-tokens", checkpoint)
    except LexvlError as error:
        print(error, file=sys.stderr)
        return 1
    index = indexed(model, folder)
    assert_type(index.documents, int)
    terms = model.decode(model.encode_query("a ship in the moonlight", batch_size=8), top_k=3)
    assert_type(terms, list[list[tuple[str, float]]])
    tensor = model.encode_document(list(TEXTS.values()), convert_to_tensor=True)
    if TYPE_CHECKING:
        assert_type(tensor, Tensor)
    hits = index.search("a boat", k=2)
    assert_type(hits, RankedList)
    print([(hit.doc_id, hit.score) for hit in hits])
    many = index.search(["a boat", "dogs"], k=2)
    assert_type(many, list[RankedList])
    run = [hit for ranking in search_index(index, corpus().topics(), hits=10, model=model) for hit in ranking]
    assert_type(run, list[ScoredDoc])
    print(as_frame(run))
    measured = evaluate(run, corpus().qrels(), ["nDCG@10", "RR@10"], name="mine")
    assert_type(measured, list[Measurement])
    assert_type(means(measured), dict[str, float])
    print(means(measured))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2])))
