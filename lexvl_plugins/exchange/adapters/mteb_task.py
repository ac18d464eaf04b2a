"""MTEB: `mteb.evaluate(model, make_task(load_dataset("beir:my-corpus")))` measures any model of MTEB on our corpora."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Topic

if TYPE_CHECKING:
    from mteb.abstasks.retrieval import AbsTaskRetrieval


def make_task(dataset: Dataset, name: str | None = None, languages: Iterable[str] = ("eng-Latn",)) -> AbsTaskRetrieval:
    """Makes a retrieval task of MTEB over a dataset, in its direction; nothing is downloaded.

    Its texts, and its pictures as PNG, lie in a temporary folder that goes with the task, whose name is by default that
    of the dataset in letters and digits.
    """
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    title = name or "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", dataset.name))
    if not title:
        raise UsageError(f"{dataset.name}: its name has no letter or digit; give the task a name")
    category: Any = "2".join(side[0] for side in dataset.direction.split("-to-"))
    pictures, split = "i" in category, dataset.split or "test"
    facts = TaskMetadata(
        name=title,
        description=f"{dataset.name}, read by lexvl-anserini",
        dataset={"path": dataset.name, "revision": "none"},
        type="Any2AnyRetrieval" if pictures else "Retrieval",
        category=category,
        modalities=["text", "image"] if pictures else ["text"],
        eval_splits=[split],
        eval_langs=list(languages),
        main_score="ndcg_at_10",
    )

    class OwnTask(AbsTaskRetrieval):
        data_loaded: bool
        metadata = facts
        ignore_identical_ids = dataset.remove_query

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            """Reads the dataset."""
            if not self.data_loaded:
                folder = mkdtemp(prefix="lexvl-mteb-")
                finalize(self, rmtree, folder, ignore_errors=True)
                self.dataset = {"default": {split: _build_split(dataset, folder)}}
                self.data_loaded = True

    return OwnTask()


def _build_split(dataset: Dataset, folder: str) -> Any:
    """Makes the corpus, the judged topics and the judgements in MTEB's form."""
    relevance: dict[str, dict[str, int]] = defaultdict(dict)
    for qrel in dataset.qrels():
        relevance[qrel.query_id][qrel.doc_id] = qrel.relevance
    judged = {query_id: rows for query_id, rows in relevance.items() if any(value > 0 for value in rows.values())}
    if not judged:
        raise DataError(f"{dataset.name}: no judgement has a relevant document; MTEB would measure nothing")
    topics = [topic for topic in dataset.topics() if topic.query_id in judged]
    if missing := sorted(judged.keys() - {topic.query_id for topic in topics}):
        raise DataError(f"{dataset.name}: judgements name topic {missing[0]!r}, which the dataset lacks")
    images = [side == "image" for side in dataset.direction.split("-to-")]
    queries = _build_table(lambda: iter(topics), images[0], folder)
    corpus = _build_table(dataset.documents, images[1], folder)
    return {"corpus": corpus, "queries": queries, "relevant_docs": judged, "top_ranked": None}


def _build_table(records: Callable[[], Iterable[Document | Topic]], pictures: bool, folder: str) -> Any:
    """Makes a `datasets.Dataset` with the columns id and image, or id, title and text."""
    from datasets import Dataset as Table
    from datasets import Features, Image, Value
    from datasets.exceptions import DatasetGenerationError

    def make_rows() -> Iterator[dict[str, Any]]:
        for record in records():
            if not pictures:
                yield {"id": record[0], "title": getattr(record, "title", None) or "", "text": record.text or ""}
            elif record.image is None:
                raise DataError(f"{record[0]!r} has no picture; the direction of the dataset needs one")
            else:
                yield {"id": record[0], "image": open_image(record.image)}

    columns = {"image": Image()} if pictures else {"title": Value("string"), "text": Value("string")}
    try:
        return Table.from_generator(make_rows, Features({"id": Value("string"), **columns}), cache_dir=folder)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
