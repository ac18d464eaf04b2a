"""Queries with passages for training: DPR's JSON, pairs of texts, triples of ids; and queries that documents have.

A file is a dataset with one split, `train`: its judgements have relevance 1 for positives and 0 for hard negatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data import lines
from lexvl_anserini.data.checks import check_id, show_id
from lexvl_anserini.data.corpora.beir import find_beir_files, read_corpus, read_queries
from lexvl_anserini.data.dataset import Dataset, choose_direction, load_reference
from lexvl_anserini.data.topics import read_topics
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import parse_json
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.records import CorpusRef, Document, Qrel, TeacherScore, Topic

SPLIT = "train"

# Names of the lists of passages, and of the id of a passage (in the files of DPR, of other trainers).
POSITIVES, HARD_NEGATIVES, NEGATIVES = "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"
PASSAGE_IDS = ("passage_id", "psg_id", "docid")
# A passage's score by the system that retrieved it.
SCORE = "score"

# A passage with its score, and streams of passages and of queries, each of which begins anew.
Scored = tuple[Document, float | None]
Documents = Callable[[], Iterator[Document]]
Topics = Callable[[], Iterator[Topic]]


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
    return make_dataset(ref, partial(read_dpr, find_file(ref.name.partition(":")[2]), ref.escape_ids))


def load_pairs(ref: CorpusRef) -> Dataset:
    """Loads `pairs:<path>`: lines of query, tab, positive, and further tabs with one hard negative after each.

    Texts have no ids; the same text is the same query or passage on every line.
    """
    return make_dataset(ref, partial(read_pairs, find_file(ref.name.partition(":")[2])))


def load_triples(ref: CorpusRef) -> Dataset:
    """Loads `triples:<path>,<folder>`: lines of query id, positive id and hard negatives' ids, separated by tabs.

    The folder has the texts: `corpus.jsonl` and `queries.jsonl` (BEIR), or `collection.tsv` and `queries.train.tsv`
    (MS MARCO).
    """
    path, comma, folder = ref.name.removeprefix("triples:").rpartition(",")
    if not comma:
        raise UsageError(f"{ref.name}: expected triples:FILE,FOLDER; the folder has the texts of the ids")
    triples = find_file(path)
    corpus, topics = find_texts(expand_path(folder), ref.escape_ids)
    judged = partial(read_triples, triples, ref.escape_ids)

    def keep_judged() -> Iterator[Topic]:
        missing = {qrel.query_id for qrel in judged()}
        for topic in topics():
            if topic.query_id in missing:
                missing.remove(topic.query_id)
                yield topic
        if missing:
            raise DataError(f"{triples}: {len(missing)} of its queries have no text, such as {min(missing)!r}")

    return make_one_split(ref, corpus, keep_judged, judged)


def make_dataset(ref: CorpusRef, examples: Callable[[], Iterator[Example]]) -> Dataset:
    """The dataset of a file that has the texts themselves: every query and passage once, in the order of the file."""

    def is_new(known: dict[str, str], what: str, item_id: str, text: str, where: str) -> bool:
        new = item_id not in known
        if known.setdefault(item_id, text) != text:
            raise DataError(f"{where}: {what} {item_id!r} has another text than before; ids name one {what}")
        return new

    def list_documents() -> Iterator[Document]:
        digests: dict[str, str] = {}
        for example in examples():
            for document in (*example.positives, *example.negatives):
                digest = compute_digest(document.title or "", document.text or "")
                if is_new(digests, "passage", document.doc_id, digest, example.where):
                    yield document

    def list_topics() -> Iterator[Topic]:
        texts: dict[str, str] = {}
        for example in examples():
            topic = example.query
            if is_new(texts, "query", topic.query_id, topic.text or "", example.where):
                yield topic

    def list_qrels() -> Iterator[Qrel]:
        for example in examples():
            for relevance, documents in ((1, example.positives), (0, example.negatives)):
                yield from (Qrel(example.query.query_id, document.doc_id, relevance) for document in documents)

    def list_scores() -> Iterator[TeacherScore]:
        for example in examples():
            yield from (TeacherScore(example.query.query_id, *scored) for scored in example.scores.items())

    return replace(make_one_split(ref, list_documents, list_topics, list_qrels), scores=list_scores)


def make_one_split(
    ref: CorpusRef, documents: Documents, topics: Topics, qrels: Callable[[], Iterator[Qrel]]
) -> Dataset:
    """A dataset of texts with the split `train` alone."""
    if ref.split not in (None, SPLIT):
        raise UsageError(f"{ref.name} has no split {ref.split!r}; a file of training pairs has the split {SPLIT} alone")
    direction = choose_direction(ref, ("text-to-text",), "text-to-text")
    return Dataset.of(replace(ref, split=SPLIT, direction=direction), documents, topics, qrels)


def find_file(path: str) -> Path:
    """The file of training pairs that a corpus names."""
    file = expand_path(path)
    if not file.is_file():
        raise DataError(f"{file}: {'a folder, expected a file' if file.is_dir() else 'no such file'} of training pairs")
    return file


def read_dpr(path: Path, escape_ids: bool = False) -> Iterator[Example]:
    """The questions of a DPR file that have a positive. An entry without `query_id` has its number, from 1, as id.

    A negative with the title and text of a positive of its question is none, whatever its id: it is left out.
    """
    skipped = total = same = 0
    for where, record in read_records(path):
        total += 1
        question = lines.get_string(record, "question", where)
        if not question or not question.strip():
            raise DataError(f"{where}: no 'question'; keys found: {', '.join(record) or 'none'}")
        if POSITIVES not in record:
            raise DataError(f"{where}: no {POSITIVES!r}; keys found: {', '.join(record)}")
        positives = read_passages(record, POSITIVES, where, escape_ids)
        negatives = read_passages(record, HARD_NEGATIVES, where, escape_ids)
        negatives = negatives or read_passages(record, NEGATIVES, where, escape_ids)
        if not positives:
            skipped += 1
            continue
        right = {compute_digest(document.title or "", document.text or "") for document, _ in positives}
        others = [(d, score) for d, score in negatives if compute_digest(d.title or "", d.text or "") not in right]
        same, negatives = same + len(negatives) - len(others), others
        query_id = check_id(record.get("query_id", total), where, escape_ids)
        scores = {document.doc_id: score for document, score in (*positives, *negatives) if score is not None}
        relevant, wrong = (tuple(document for document, _ in listed) for listed in (positives, negatives))
        yield Example(where, Topic(query_id, question), relevant, wrong, scores)
    if skipped == total:
        raise DataError(f"{path}: {f'none of {total} entries has a positive' if total else 'no entry in it'}")
    if skipped:
        lines.log_once(f"{path}: {skipped} of {total} entries have no positive and are left out")
    if same:
        lines.log_once(f"{path}: {same} hard negatives have the text of a positive of their question and are left out")


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a JSON array or of JSON lines, each with its place."""
    if lines.get_plain_suffix(path) == ".jsonl":
        for line in lines.read_lines(path):
            yield line.where, lines.parse_object(line)
        return
    records = parse_json(lines.read_packed(path), str(path), mend=True)
    if not isinstance(records, list):
        raise DataError(f"{path}: no JSON array; expected [{{'question': ..., '{POSITIVES}': [...]}}, ...]")
    for number, record in enumerate(records, start=1):
        where = f"{path} entry {number}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: not an object with 'question' and {POSITIVES!r}")
        yield where, record


def read_passages(record: Mapping[str, Any], key: str, where: str, escape_ids: bool) -> list[Scored]:
    """The passages of one list of an entry, each with its score if it has one; an absent list has none."""
    listed = record.get(key) or []
    if not isinstance(listed, list):
        raise DataError(f"{where}: {key!r} is not a list of passages")
    documents: list[Scored] = []
    for number, passage in enumerate(listed, start=1):
        place = f"{where}: passage {number} of {key!r}"
        if not isinstance(passage, dict):
            raise DataError(f"{place} is {show_id(passage)}, expected an object with 'title' and 'text'")
        title, text = (lines.get_string(passage, name, place) for name in ("title", "text"))
        if text is None or not f"{title or ''}{text}".strip():
            raise DataError(f"{place} has no text")
        raw_id = next((passage[name] for name in PASSAGE_IDS if name in passage), None)
        doc_id = compute_digest(title or "", text) if raw_id is None else check_id(raw_id, place, escape_ids)
        score = passage.get(SCORE)
        if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
            raise DataError(f"{place}: {SCORE!r} is {show_id(score)}, expected a number")
        documents.append((Document(doc_id, title or None, text), score))
    return documents


def compute_digest(*parts: str) -> str:
    """An id from texts: 16 hex digits."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_pairs(path: Path) -> Iterator[Example]:
    """The lines of a file of texts."""
    for where, columns in read_table(path, "query, positive and optional negatives"):
        query, positive, *negatives = columns
        first, *others = (Document(compute_digest("", text), text=text) for text in (positive, *negatives))
        yield Example(where, Topic(compute_digest(query), query), (first,), tuple(others))


def read_triples(path: Path, escape_ids: bool = False) -> Iterator[Qrel]:
    """The judgements of a file of ids."""
    for where, columns in read_table(path, "query id, positive id and optional negatives' ids"):
        query_id, *doc_ids = (check_id(column, where, escape_ids) for column in columns)
        for number, doc_id in enumerate(doc_ids):
            yield Qrel(query_id, doc_id, int(number == 0))


def read_table(path: Path, expected: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of a file with two or more columns between tabs, each with its place."""
    width = 0
    for line in lines.read_lines(path):
        columns = [column.strip() for column in lines.decode(line).split("\t")]
        if lines.is_header(line, columns):
            continue
        width = width or len(columns)
        if len(columns) < 2 or len(columns) != width:
            expected_width = "2 or more" if width < 2 else f"{width} as in the first line"
            raise DataError(f"{line.where}: {len(columns)} columns, expected {expected_width} ({expected})")
        if not all(columns):
            raise DataError(f"{line.where}: column {columns.index('') + 1} is empty ({expected})")
        yield line.where, columns
    if not width:
        raise DataError(f"{path}: no line in it; expected {expected}, between tabs")


def find_texts(folder: Path, escape_ids: bool) -> tuple[Documents, Topics]:
    """The documents and topics of a folder in the layout of BEIR or of MS MARCO."""
    if (corpus := find_beir_files(folder)) and (files := find_beir_files(folder, "queries")):
        return partial(read_corpus, corpus, escape_ids), partial(read_queries, files, escape_ids)
    collection, queries = folder / "collection.tsv", folder / "queries.train.tsv"
    if not (collection.is_file() and queries.is_file()):
        raise DataError(f"{folder}: expected corpus.jsonl and queries.jsonl, or collection.tsv and queries.train.tsv")
    return partial(read_collection, collection, escape_ids), partial(read_topics, queries, escape_ids)


def read_collection(path: Path, escape_ids: bool = False) -> Iterator[Document]:
    """The passages of MS MARCO's `collection.tsv`: id, tab, text."""
    for line in lines.read_lines(path):
        doc_id, tab, text = lines.decode(line).partition("\t")
        if lines.is_header(line, (doc_id, text)):
            continue
        if not tab:
            raise DataError(f"{line.where}: no tab; expected id, tab, text")
        yield Document(check_id(doc_id, line.where, escape_ids), text=text)


# Characters of a sentence that is a query: shorter ones say little, longer ones are often lists.
LEAST, MOST = 40, 300

_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


def load_own_queries(ref: CorpusRef) -> Dataset:
    """Loads `titles:<corpus>` or `sentences:<corpus>`, for example `titles:beir/nfcorpus`.

    The title of a document, or the last sentence of its text, is a query, and that document its one relevant document.
    (GPL, arXiv 2112.07577, generates such queries; here they are taken as they are.)
    """
    kind, _, name = ref.name.partition(":")
    if not name:
        raise UsageError(f"{ref.name!r} names no corpus; expected {kind}:<corpus>, such as {kind}:beir/nfcorpus")
    if ref.split is not None:
        raise UsageError(f"{ref.name}: split {ref.split!r}; queries of the documents themselves have no splits")
    corpus, find_query = load_reference(replace(ref, name=name)), QUERIES[kind]

    def list_topics() -> Iterator[Topic]:
        queries = ((document.doc_id, find_query(document)) for document in corpus.documents())
        return (Topic(doc_id, query) for doc_id, query in queries if query is not None)

    def list_qrels() -> Iterator[Qrel]:
        return (Qrel(topic.query_id, topic.query_id, 1) for topic in list_topics())

    own = {"topics": list_topics, "qrels": list_qrels, "remove_query": False, "scores": None}
    return replace(corpus, name=ref.name, split="", **own)  # type: ignore[arg-type]


def find_title(document: Document) -> str | None:
    """The title of a document that has a text too."""
    title = (document.title or "").strip()
    return title if title and (document.text or "").strip() else None


def find_last_sentence(document: Document) -> str | None:
    """The last sentence of at least `LEAST` and at most `MOST` characters in the text of a document."""
    sentences = [sentence.strip() for sentence in _END.split((document.text or "").strip())]
    return next((sentence for sentence in reversed(sentences) if LEAST <= len(sentence) <= MOST), None)


QUERIES: dict[str, Callable[[Document], str | None]] = {"titles": find_title, "sentences": find_last_sentence}
