"""Queries that documents give by themselves, for training without judgements: `titles:<corpus>`, `sentences:<corpus>`.

The documents are those of the corpus. The title of a document, or the last sentence of its text, is a query, and that
document its one relevant document. (GPL, arXiv 2112.07577, generates such queries; here they are taken as they are.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from lexvl_anserini.data.dataset import Dataset, dataset_of
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Document, Qrel, Topic

# Characters of a sentence that is a query: shorter ones say little, longer ones are often lists.
LEAST, MOST = 40, 300

_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


def load_own_queries(ref: CorpusRef) -> Dataset:
    """Loads `titles:<corpus>` or `sentences:<corpus>`, for example `titles:beir/nfcorpus`."""
    kind, _, name = ref.name.partition(":")
    if not name:
        raise UsageError(f"{ref.name!r} names no corpus; expected {kind}:<corpus>, such as {kind}:beir/nfcorpus")
    if ref.split is not None:
        raise UsageError(f"{ref.name}: split {ref.split!r}; queries of the documents themselves have no splits")
    corpus = dataset_of(replace(ref, name=name))
    query_of = QUERIES[kind]
    return replace(
        corpus,
        name=ref.name,
        split="",
        topics=partial(_topics, corpus, query_of),
        qrels=partial(_qrels, corpus, query_of),
        remove_query=False,
        scores=None,
    )


def title_of(document: Document) -> str | None:
    """The title of a document that has a text too."""
    title = (document.title or "").strip()
    return title if title and (document.text or "").strip() else None


def last_sentence_of(document: Document) -> str | None:
    """The last sentence of at least `LEAST` and at most `MOST` characters in the text of a document."""
    sentences = [sentence.strip() for sentence in _END.split((document.text or "").strip())]
    return next((sentence for sentence in reversed(sentences) if LEAST <= len(sentence) <= MOST), None)


QUERIES: dict[str, Callable[[Document], str | None]] = {"titles": title_of, "sentences": last_sentence_of}


def _topics(corpus: Dataset, query_of: Callable[[Document], str | None]) -> Iterator[Topic]:
    for document in corpus.documents():
        if (query := query_of(document)) is not None:
            yield Topic(document.doc_id, query)


def _qrels(corpus: Dataset, query_of: Callable[[Document], str | None]) -> Iterator[Qrel]:
    return (Qrel(topic.query_id, topic.query_id, 1) for topic in _topics(corpus, query_of))
