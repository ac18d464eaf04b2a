"""A dataset: its documents, topics and judgements; loaded by name or by the reference in a manifest.

Passages: the parts of a long text, each a document of its own with the id `doc#0`, `doc#1`, ...

A document's id ends at the first `#` of the id of its passage, as in Pyserini; an id without `#` is a document of one
passage, and so is one that begins with its only `#`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.lines import LinePlace, log_once
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.machine import cache_folder, expand_path
from lexvl_anserini.ground.records import DELIMITER, CorpusRef, Document, Qrel, TeacherScore, Topic, get_document_id
from lexvl_anserini.ground.registry import CORPORA, import_home
from lexvl_anserini.ground.typed import MOST, check_type

DIRECTIONS = ("text-to-text", "text-to-image", "image-to-text")  # the modality of topics, then that of documents


@dataclass(frozen=True)
class Dataset:
    """Documents, topics and qrels of one split; each call starts a new stream, and only captions are held in memory.

    Attributes:
        name: as `load_dataset` got it, without the split: `beir/scifact`.
        split: of topics and qrels (and of the documents where the corpus itself is split, as in `demo`).
        data_dir: the folder of the datasets, None for the default.
        remove_query: a hit whose doc_id equals the query_id does not count (BEIR's rule; never for captions).
        escape_ids: ids are percent-encoded (`data.checks.escape_id`) in documents, topics and qrels alike.
        direction: what topics and documents are: text-to-text, text-to-image or image-to-text.
        scores: of judged documents by a teacher; None where the files have none.
        passages: the rule by which documents are passages of texts (`PassageRule`); None for whole documents.
        placed: the documents from a place of their file on, each with its place; None where no file has places, so that
            the documents before one have to be read.
        folder: the folder of which every text is a document; None for other corpora.
    """

    name: str
    split: str
    documents: Callable[[], Iterator[Document]]
    topics: Callable[[], Iterator[Topic]]
    qrels: Callable[[], Iterator[Qrel]]
    data_dir: str | None = None
    remove_query: bool = False
    escape_ids: bool = False
    direction: str = "text-to-text"
    scores: Callable[[], Iterator[TeacherScore]] | None = None
    passages: str | None = None
    placed: Callable[[LinePlace], Iterator[tuple[LinePlace, Document]]] | None = None
    folder: Path | None = None

    @classmethod
    def of(
        cls,
        ref: CorpusRef,
        documents: Callable[[], Iterator[Document]],
        topics: Callable[[], Iterator[Topic]],
        qrels: Callable[[], Iterator[Qrel]],
        remove_query: bool = False,
    ) -> Dataset:
        """The dataset of a reference whose split and direction are decided."""
        split, direction = ref.split or "", ref.direction or "text-to-text"
        return cls(ref.name, split, documents, topics, qrels, ref.data_dir, remove_query, ref.escape_ids, direction)

    @property
    def ref(self) -> CorpusRef:
        """The reference that loads this dataset again."""
        split = self.split or None
        return CorpusRef(self.name, split, self.data_dir, self.escape_ids, self.direction, self.passages)


def begun(dataset: Dataset) -> Dataset:
    """The dataset with its first document read ahead, so that what cannot be read fails here and not later."""
    stream = dataset.documents()
    started = [chain(list(islice(stream, 1)), stream)]

    def documents() -> Iterator[Document]:
        return started.pop() if started else dataset.documents()

    return replace(dataset, documents=documents)


def data_root(data_dir: str | None) -> Path:
    """The folder of all datasets: the argument, else $LEXVL_DATA, else ~/.cache/lexvl."""
    return expand_path(data_dir or os.environ.get("LEXVL_DATA") or cache_folder())


def load_dataset(
    name: str | Path,
    split: str | None = None,
    data_dir: str | Path | None = None,
    escape_ids: bool = False,
    direction: str | None = None,
    passages: str | None = None,
) -> Dataset:
    """Loads a registered dataset by name.

    Args:
        name: `demo`, `beir/<name>`, `beir:<path>`, `folder:<path>`, `coco`, `flickr30k`, `flickr8k`,
            `irds:<id>`, `karpathy:<json>[,<images>]`, or a corpus of a plug-in; a split may follow a name
            or a folder in BEIR's layout: `beir/scifact/train`, `beir:<path>/train`.
        split: of topics and judgements (and of documents where the corpus itself is split); default `test`.
        data_dir: folder of the datasets; default $LEXVL_DATA, else ~/.cache/lexvl.
        escape_ids: percent-encode white space and control characters in ids instead of refusing them.
        direction: text-to-text, text-to-image or image-to-text; default the dataset's own.
        passages: `WORDS` or `WORDS:STRIDE`: each text is split into passages of WORDS words, one every STRIDE words,
            with the ids `doc#0`, `doc#1`, ...

    Raises:
        UnknownName: no family or direction of that name.
        UsageError: the dataset does not have that direction, or `passages` is not such a rule.
        DataError: its files are missing or malformed; the message says what to put where.
    """
    check_type("name", name, str | Path, "the name of a corpus, such as 'demo'")
    check_type("split", split, str | None, "a name")
    check_type("data_dir", data_dir, str | Path | None, "a folder")
    check_type("direction", direction, str | None, "a name")
    place = str(data_dir) if data_dir else None
    return load_reference(CorpusRef(str(name), split, place, escape_ids, direction, passages))


def get_family(name: str) -> str:
    """The key in `CORPORA` of a corpus name: its part before `/` or `:`."""
    return name.split(":", 1)[0].split("/", 1)[0]


def load_reference(ref: CorpusRef) -> Dataset:
    """Loads the dataset of a reference, for example of `manifest.corpus.ref`."""
    family = get_family(ref.name)
    if family not in CORPORA and expand_path(ref.name).exists():
        named = f"pictures:{ref.name} its pictures alone, beir:{ref.name} a corpus.jsonl"
        what = f"is a path and names no corpus; folder:{ref.name} has its pictures and texts, {named}"
        raise UsageError(f"{ref.name!r} {what}")
    row = CORPORA[family]
    if ref.name.startswith(f"{family}:") and not row.has_path:
        remedy = "karpathy:FILE.json,IMAGES reads captioned images from elsewhere"
        what = "has no place in its name, its files are in the data folder or in a package"
        raise UsageError(f"{ref.name}: {family} {what}; {remedy}")
    dataset: Dataset = import_home(row.home)(ref)
    if ref.passages is None:
        return dataset
    documents = partial(split_documents, dataset.documents, PassageRule.parse(ref.passages), ref.name)
    return replace(dataset, documents=documents, passages=ref.passages, placed=None)


def choose_split(ref: CorpusRef, split_in_name: str | None) -> str | None:
    """The split of the reference, or the one that follows the name, as in `coco/val`; None if neither is given."""
    if ref.split and split_in_name and ref.split != split_in_name:
        what = f"the name says split {split_in_name!r}, the split option {ref.split!r}"
        raise UsageError(f"{ref.name}: {what}; give one of them")
    return ref.split or split_in_name or None


def choose_direction(ref: CorpusRef, offered: Sequence[str], default: str) -> str:
    """The direction of the reference, or the default."""
    if ref.direction is None:
        return default
    if ref.direction not in DIRECTIONS:
        raise UnknownName("direction", ref.direction, DIRECTIONS)
    if ref.direction not in offered:
        raise UsageError(f"{ref.name} has no direction {ref.direction!r}; it has {', '.join(offered)}")
    return ref.direction


WORD = re.compile(r"\S+")


class PassageRule(NamedTuple):
    """Passages of `words` words, one every `stride` words; words are separated by white space."""

    words: int
    stride: int

    @classmethod
    def parse(cls, rule: str) -> PassageRule:
        """The rule `WORDS` or `WORDS:STRIDE`; a stride of WORDS is the default."""
        numbers = rule.split(":") if re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", rule) else ["0"]
        words, stride = int(numbers[0]), int(numbers[-1])
        if not 1 <= stride <= words <= MOST:
            form = "WORDS or WORDS:STRIDE, such as 150:75, a stride of 1 to WORDS"
            raise UsageError(f"passages {rule!r}: expected {form}")
        return cls(words, stride)

    def texts(self, text: str) -> Iterator[str]:
        """The passages of a text, cut from it unchanged; an empty text is one passage."""
        spans = [match.span() for match in WORD.finditer(text)]
        if len(spans) <= self.words:
            yield text
            return
        # The last passage ends where the text ends; another would add no word.
        for first in range(0, len(spans) - self.words + self.stride, self.stride):
            some = spans[first : first + self.words]
            yield text[some[0][0] : some[-1][1]]


def split_documents(documents: Callable[[], Iterator[Document]], rule: PassageRule, name: str) -> Iterator[Document]:
    """The passages of all documents, each with its title and metadata; a document with an image is one passage."""
    count = passages = 0
    for count, document in enumerate(documents(), start=1):
        if get_document_id(f"{document.doc_id}{DELIMITER}") != document.doc_id:
            what = f"has a {DELIMITER!r}, which ends a document's id in that of a passage; rename it"
            raise DataError(f"{name}: id {document.doc_id!r} of document {count} {what}")
        whole = document.image is not None or document.text is None
        texts = [document.text] if whole else rule.texts(document.text or "")
        for number, text in enumerate(texts):
            passages += 1
            yield document._replace(doc_id=f"{document.doc_id}{DELIMITER}{number}", text=text)
    log_once(f"{name}: {count:,} documents in {passages:,} passages", logging.INFO)
