"""MTEB: `mteb.evaluate(model, task_of(load_dataset("beir:my-corpus")))` measures any model of MTEB on our corpora."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Topic

if TYPE_CHECKING:
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    from lexvl_anserini.data.dataset import Dataset


def task_of(dataset: Dataset, name: str | None = None, languages: Iterable[str] = ("eng-Latn",)) -> AbsTaskRetrieval:
    """A retrieval task of MTEB over a dataset, in its direction; nothing is downloaded.

    Its texts, and its pictures as PNG, lie in a temporary folder that goes with the task.

    Args:
        dataset: with topics and judgements.
        name: of the task in results; default letters and digits of the dataset's name.
        languages: of its texts, as MTEB writes them.

    Raises:
        DataError: no judgement has a relevant document, or judgements name a topic that the dataset lacks.
        UsageError: `name` has no letter or digit.
    """
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    title = name or "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", dataset.name))
    if not title:
        raise UsageError(f"{dataset.name}: its name has no letter or digit; give the task a name")
    sides = [side[0] for side in dataset.direction.split("-to-")]
    category: Any = "2".join(sides)
    split = dataset.split or "test"
    facts = TaskMetadata(
        name=title,
        description=f"{dataset.name}, read by lexvl-anserini",
        dataset={"path": dataset.name, "revision": "none"},
        type="Any2AnyRetrieval" if "i" in sides else "Retrieval",
        category=category,
        modalities=["text", "image"] if "i" in sides else ["text"],
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
                self.dataset = {"default": {split: _split_of(dataset, folder)}}
                self.data_loaded = True

    return OwnTask()


def _split_of(dataset: Dataset, folder: str) -> Any:
    """The corpus, the judged topics and the judgements in MTEB's form."""
    relevance: dict[str, dict[str, int]] = defaultdict(dict)
    for qrel in dataset.qrels():
        relevance[qrel.query_id][qrel.doc_id] = qrel.relevance
    judged = {query_id: rows for query_id, rows in relevance.items() if any(value > 0 for value in rows.values())}
    if not judged:
        raise DataError(f"{dataset.name}: no judgement has a relevant document; MTEB would measure nothing")
    topics = [topic for topic in dataset.topics() if topic.query_id in judged]
    if missing := sorted(judged.keys() - {topic.query_id for topic in topics}):
        raise DataError(f"{dataset.name}: judgements name topic {missing[0]!r}, which the dataset lacks")
    of_queries, of_documents = (side == "image" for side in dataset.direction.split("-to-"))
    return {
        "corpus": _table(dataset.documents, of_documents, folder),
        "queries": _table(lambda: iter(topics), of_queries, folder),
        "relevant_docs": judged,
        "top_ranked": None,
    }


def _table(records: Callable[[], Iterable[Document | Topic]], pictures: bool, folder: str) -> Any:
    """A `datasets.Dataset` with the columns id and image, or id, title and text."""
    from datasets import Dataset as Table
    from datasets import Features, Image, Value
    from datasets.exceptions import DatasetGenerationError

    columns = {"image": Image()} if pictures else {"title": Value("string"), "text": Value("string")}
    features = Features({"id": Value("string"), **columns})
    try:
        return Table.from_generator(lambda: _rows(records(), pictures), features, cache_dir=folder)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _rows(records: Iterable[Document | Topic], pictures: bool) -> Iterator[dict[str, Any]]:
    for record in records:
        if pictures:
            if record.image is None:
                raise DataError(f"{record[0]!r} has no picture; the direction of the dataset needs one")
            yield {"id": record[0], "image": open_image(record.image)}
        else:
            yield {"id": record[0], "title": getattr(record, "title", None) or "", "text": record.text or ""}
