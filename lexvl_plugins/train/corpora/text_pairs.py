"""Files of queries with passages for training: DPR's JSON, pairs and triples of texts, MS MARCO's triples of ids.

Each is a dataset with one split, `train`: its judgements have relevance 1 for positives and 0 for hard negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.data.checks import checked_id, shown
from lexvl_anserini.data.corpora.beir import corpus_file, read_corpus
from lexvl_anserini.data.dataset import Dataset, checked_direction
from lexvl_anserini.data.lines import (
    DAMAGED_GZIP,
    decode,
    log_once,
    open_packed,
    parse_object,
    plain_suffix,
    read_lines,
    string_field,
)
from lexvl_anserini.data.topics import read_topics
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.machine import expanded_path
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Document, Qrel, TeacherScore, Topic

SPLIT = "train"

# Names of the lists of passages, and of the id of a passage (in the files of DPR, of other trainers).
POSITIVES, HARD_NEGATIVES, NEGATIVES = "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"
PASSAGE_IDS = ("passage_id", "psg_id", "docid")
# A passage's score by the system that retrieved it.
SCORE = "score"


class Example(NamedTuple):
    """One entry of a file: a query, its positives, at least one, its hard negatives, and a teacher's scores by id."""

    where: str
    query: Topic
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...]
    scores: Mapping[str, float] = {}


def load_dpr_file(ref: CorpusRef) -> Dataset:
    """Loads `dpr:<path>`: a JSON array (`.json`) or JSON lines (`.jsonl`) of questions with passages.

    Hard negatives are `hard_negative_ctxs`, or where there are none `negative_ctxs`, as in DPR. Entries without a
    positive are left out, as in DPR.
    """
    return dataset_of_examples(ref, partial(read_dpr, path_of(ref), ref.escape_ids))


def load_pairs(ref: CorpusRef) -> Dataset:
    """Loads `pairs:<path>`: lines of query, tab, positive, and further tabs with one hard negative after each.

    Texts have no ids; the same text is the same query or passage on every line.
    """
    return dataset_of_examples(ref, partial(read_pairs, path_of(ref)))


def load_triples(ref: CorpusRef) -> Dataset:
    """Loads `triples:<path>,<folder>`: lines of query id, positive id and hard negatives' ids, separated by tabs.

    The folder has the texts: `corpus.jsonl` and `queries.jsonl` (BEIR), or `collection.tsv` and `queries.train.tsv`
    (MS MARCO).
    """
    path, comma, folder = ref.name.removeprefix("triples:").rpartition(",")
    if not comma:
        raise UsageError(f"{ref.name}: expected triples:FILE,FOLDER; the folder has the texts of the ids")
    triples = existing(expanded_path(path))
    corpus, topics = texts_of(expanded_path(folder), ref.escape_ids)
    judged = partial(read_triples, triples, ref.escape_ids)
    return one_split(ref, corpus, partial(judged_topics, judged, topics, triples), judged)


def dataset_of_examples(ref: CorpusRef, examples: Callable[[], Iterator[Example]]) -> Dataset:
    """The dataset of a file that has the texts themselves."""
    dataset = one_split(ref, partial(documents_of, examples), partial(topics_of, examples), partial(qrels_of, examples))
    return replace(dataset, scores=partial(scores_of, examples))


def one_split(
    ref: CorpusRef,
    documents: Callable[[], Iterator[Document]],
    topics: Callable[[], Iterator[Topic]],
    qrels: Callable[[], Iterator[Qrel]],
) -> Dataset:
    """A dataset of texts with the split `train` alone."""
    if ref.split not in (None, SPLIT):
        raise UsageError(f"{ref.name} has no split {ref.split!r}; a file of training pairs has the split {SPLIT} alone")
    direction = checked_direction(ref, ("text-to-text",), "text-to-text")
    return Dataset.of(replace(ref, split=SPLIT, direction=direction), documents, topics, qrels)


def path_of(ref: CorpusRef) -> Path:
    """The file of `family:<path>`."""
    return existing(expanded_path(ref.name.partition(":")[2]))


def existing(path: Path) -> Path:
    """The path, after checking that it is a file."""
    if not path.is_file():
        raise DataError(f"{path}: {'a folder, expected a file' if path.is_dir() else 'no such file'} of training pairs")
    return path


def documents_of(examples: Callable[[], Iterator[Example]]) -> Iterator[Document]:
    """Every passage once, in the order of the file."""
    digests: dict[str, str] = {}
    for example in examples():
        for document in (*example.positives, *example.negatives):
            digest = digest_of(document.title or "", document.text or "")
            if document.doc_id not in digests:
                digests[document.doc_id] = digest
                yield document
            elif digests[document.doc_id] != digest:
                raise DataError(
                    f"{example.where}: passage {document.doc_id!r} has another text than before; ids name one passage"
                )


def topics_of(examples: Callable[[], Iterator[Example]]) -> Iterator[Topic]:
    """Every query once, in the order of the file."""
    texts: dict[str, str] = {}
    for example in examples():
        query_id, text = example.query.query_id, example.query.text or ""
        if query_id not in texts:
            texts[query_id] = text
            yield example.query
        elif texts[query_id] != text:
            raise DataError(f"{example.where}: query {query_id!r} has another text than before; ids name one query")


def qrels_of(examples: Callable[[], Iterator[Example]]) -> Iterator[Qrel]:
    """The positives, with relevance 1, and the hard negatives, with relevance 0, of every entry."""
    for example in examples():
        for relevance, documents in ((1, example.positives), (0, example.negatives)):
            for document in documents:
                yield Qrel(example.query.query_id, document.doc_id, relevance)


def scores_of(examples: Callable[[], Iterator[Example]]) -> Iterator[TeacherScore]:
    """The scores of the passages that have one."""
    for example in examples():
        for doc_id, score in example.scores.items():
            yield TeacherScore(example.query.query_id, doc_id, score)


def read_dpr(path: Path, escape_ids: bool = False) -> Iterator[Example]:
    """The questions of a DPR file that have a positive. An entry without `query_id` has its number, from 1, as id.

    A negative with the title and text of a positive of its question is none, whatever its id: it is left out.
    """
    skipped = total = same = 0
    for where, record in dpr_records(path):
        total += 1
        question = string_field(record, "question", where)
        if not question or not question.strip():
            raise DataError(f"{where}: no 'question'; keys found: {', '.join(record) or 'none'}")
        if POSITIVES not in record:
            raise DataError(f"{where}: no {POSITIVES!r}; keys found: {', '.join(record)}")
        positives = passages(record, POSITIVES, where, escape_ids)
        negatives = passages(record, HARD_NEGATIVES, where, escape_ids) or passages(
            record, NEGATIVES, where, escape_ids
        )
        if not positives:
            skipped += 1
            continue
        right = {digest_of(document.title or "", document.text or "") for document, _ in positives}
        others = [(d, score) for d, score in negatives if digest_of(d.title or "", d.text or "") not in right]
        same, negatives = same + len(negatives) - len(others), others
        query_id = checked_id(record.get("query_id", total), where, escape_ids)
        scores = {document.doc_id: score for document, score in (*positives, *negatives) if score is not None}
        relevant, wrong = (tuple(document for document, _ in listed) for listed in (positives, negatives))
        yield Example(where, Topic(query_id, question), relevant, wrong, scores)
    if skipped == total:
        raise DataError(f"{path}: {f'none of {total} entries has a positive' if total else 'no entry in it'}")
    if skipped:
        log_once(f"{path}: {skipped} of {total} entries have no positive and are left out")
    if same:
        log_once(f"{path}: {same} hard negatives have the text of a positive of their question and are left out")


def dpr_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a JSON array or of JSON lines, each with its place."""
    if plain_suffix(path) == ".jsonl":
        for line in read_lines(path):
            yield line.where, parse_object(line)
        return
    try:
        with open_packed(path) as source:
            records = orjson.loads(source.read())
    except (OSError, *DAMAGED_GZIP) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem
    except orjson.JSONDecodeError as problem:
        raise DataError(f"{path}: malformed JSON ({problem}); JSON lines have the suffix .jsonl") from problem
    if not isinstance(records, list):
        raise DataError(f"{path}: no JSON array; expected [{{'question': ..., '{POSITIVES}': [...]}}, ...]")
    for number, record in enumerate(records, start=1):
        where = f"{path} entry {number}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: not an object with 'question' and {POSITIVES!r}")
        yield where, record


def passages(record: Mapping[str, Any], key: str, where: str, escape_ids: bool) -> list[tuple[Document, float | None]]:
    """The passages of one list of an entry, each with its score if it has one; an absent list has none."""
    listed = record.get(key) or []
    if not isinstance(listed, list):
        raise DataError(f"{where}: {key!r} is not a list of passages")
    documents: list[tuple[Document, float | None]] = []
    for number, passage in enumerate(listed, start=1):
        place = f"{where}: passage {number} of {key!r}"
        if not isinstance(passage, dict):
            raise DataError(f"{place} is {shown(passage)}, expected an object with 'title' and 'text'")
        title, text = (string_field(passage, name, place) for name in ("title", "text"))
        if text is None or not f"{title or ''}{text}".strip():
            raise DataError(f"{place} has no text")
        raw_id = next((passage[name] for name in PASSAGE_IDS if name in passage), None)
        doc_id = digest_of(title or "", text) if raw_id is None else checked_id(raw_id, place, escape_ids)
        score = passage.get(SCORE)
        if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
            raise DataError(f"{place}: {SCORE!r} is {shown(score)}, expected a number")
        documents.append((Document(doc_id, title or None, text), score))
    return documents


def digest_of(*parts: str) -> str:
    """An id from texts: 16 hex digits."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_pairs(path: Path) -> Iterator[Example]:
    """The lines of a file of texts."""
    for where, columns in table(path, "query, positive and optional negatives"):
        query, positive, *negatives = columns
        yield Example(where, Topic(digest_of(query), query), (of_text(positive),), tuple(map(of_text, negatives)))


def of_text(text: str) -> Document:
    """A passage without id and title."""
    return Document(digest_of("", text), text=text)


def read_triples(path: Path, escape_ids: bool = False) -> Iterator[Qrel]:
    """The judgements of a file of ids."""
    for where, columns in table(path, "query id, positive id and optional negatives' ids"):
        query_id, *doc_ids = (checked_id(column, where, escape_ids) for column in columns)
        for number, doc_id in enumerate(doc_ids):
            yield Qrel(query_id, doc_id, int(number == 0))


def table(path: Path, expected: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of a file with two or more columns between tabs, each with its place.

    Raises:
        DataError: a line has fewer columns or another number than the first, or an empty one; or there is no line.
    """
    width = 0
    for line in read_lines(path):
        columns = [column.strip() for column in decode(line).split("\t")]
        width = width or len(columns)
        if len(columns) < 2 or len(columns) != width:
            expected_width = "2 or more" if width < 2 else f"{width} as in the first line"
            raise DataError(
                f"{line.where}: {len(columns)} columns, expected {expected_width} ({expected}, between tabs)"
            )
        if not all(columns):
            raise DataError(f"{line.where}: column {columns.index('') + 1} is empty ({expected})")
        yield line.where, columns
    if not width:
        raise DataError(f"{path}: no line in it; expected {expected}, between tabs")


def texts_of(folder: Path, escape_ids: bool) -> tuple[Callable[[], Iterator[Document]], Callable[[], Iterator[Topic]]]:
    """The documents and topics of a folder in the layout of BEIR or of MS MARCO."""
    if (corpus := corpus_file(folder)) and (folder / "queries.jsonl").is_file():
        return partial(read_corpus, corpus, escape_ids), partial(read_topics, folder / "queries.jsonl", escape_ids)
    collection, queries = folder / "collection.tsv", folder / "queries.train.tsv"
    if not (collection.is_file() and queries.is_file()):
        raise DataError(
            f"{folder}: expected corpus.jsonl and queries.jsonl (BEIR) or collection.tsv and queries.train.tsv "
            "(MS MARCO)"
        )
    return partial(read_collection, collection, escape_ids), partial(read_topics, queries, escape_ids)


def read_collection(path: Path, escape_ids: bool = False) -> Iterator[Document]:
    """The passages of MS MARCO's `collection.tsv`: id, tab, text."""
    for line in read_lines(path):
        doc_id, tab, text = decode(line).partition("\t")
        if not tab:
            raise DataError(f"{line.where}: no tab; expected id, tab, text")
        yield Document(checked_id(doc_id, line.where, escape_ids), text=text)


def judged_topics(
    judged: Callable[[], Iterator[Qrel]], topics: Callable[[], Iterator[Topic]], where: Path
) -> Iterator[Topic]:
    """The topics that have a judgement."""
    missing = {qrel.query_id for qrel in judged()}
    for topic in topics():
        if topic.query_id in missing:
            missing.remove(topic.query_id)
            yield topic
    if missing:
        raise DataError(f"{where}: {len(missing)} of its queries have no text, such as {min(missing)!r}")
