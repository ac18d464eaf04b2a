"""The impact engine: Lucene, in which a term's frequency is its impact and a score is the integer dot product.

The index is what stock Anserini would write (fields, options, similarity), so that stock `LuceneImpactSearcher`
reads it; but every impact goes in as one custom term frequency where stock repeats the term that many times.
Searching asks Lucene itself, with the sort that stock uses: score descending, then doc_id ascending.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil, log2
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.cli import Progress, silent
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.folder import folder_bytes, new_index, write_report
from lexvl_anserini.engines.jvm import java_cast, java_class, java_errors
from lexvl_anserini.engines.shards import SeenIds, expect_counts, read_ids, read_impacts, read_vocabulary
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.quantise import SCORE_LIMIT
from lexvl_anserini.records import ImpactDocument, ImpactQuery, Index, Manifest, ScoredDoc

# Between a term and its frequency. Vocabularies hold no control characters; Lucene's default, "|", is in BERT's.
DELIMITER = "\x01"

# The tokenizer cuts longer tokens, delimiter and digits included; terms are at most 32,766 bytes.
MAX_TOKEN_LENGTH = 100_000

RAM_BUFFER_MB = 256.0

CONTENTS = "contents"
ID = "id"


class LuceneEngine:
    """Searches an impact index, ours or one that stock Anserini built from the same shards.

    Raises:
        ArtefactError: the folder is no Lucene index, or holds another number of documents than the manifest says.
        JavaError: no usable Java.
    """

    def __init__(self, index: Path, manifest: Manifest):
        jvm.start()
        with java_errors(f"{index}: cannot be opened as a Lucene index"):
            self.reader = _open_reader(index)
            self.searcher = java_class("org.apache.lucene.search.IndexSearcher")(_as_reader(self.reader))
            self.searcher.setSimilarity(_impact_similarity())
        self.documents = int(self.reader.maxDoc())
        # Stock Anserini leaves out documents without terms; they could not be hits.
        documents, empty = manifest.counts["documents"], manifest.counts.get("empty", 0)
        if self.documents not in (documents, documents - empty):
            self.reader.close()
            raise ArtefactError(
                f"{index}: {self.documents} documents, the manifest says {documents} of which {empty} empty; "
                "index again"
            )
        self.max_impact: int | None = manifest.counts.get("max_impact")
        self._max_impact_of: dict[str, int] = {}
        sort_field = java_class("org.apache.lucene.search.SortField")
        by_id = sort_field(ID, java_class("org.apache.lucene.search.SortField$Type").STRING_VAL)
        self.order = java_class("org.apache.lucene.search.Sort")(sort_field.FIELD_SCORE, by_id)
        # One call into Java costs some microseconds, so queries go in and hits come out as JSON in one call each.
        self.json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        self.weights = self.json.readerForMapOf(java_class("java.lang.Class").forName("java.lang.Float"))
        self.generator = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()

    @staticmethod
    def build(shards: Path, index: Path, manifest: Manifest, threads: int = 1, progress: Progress = silent) -> Index:
        """Writes the index in one thread, streaming over the shards (Python feeds Lucene; more threads do not help).

        Raises:
            ArtefactError: a shard is damaged or malformed, an id occurs twice, or what Lucene holds afterwards is
                not what the shards hold.
        """
        jvm.start()
        vocabulary = read_vocabulary(shards, manifest)
        seen = SeenIds()
        with new_index(index, shards, manifest) as part, java_errors(f"{index}: cannot be written"):
            found = {"documents": 0, "empty": 0, "postings": 0, "impacts": 0, "max_impact": 0}
            with _writer(part) as write:
                for document in read_impacts(shards, manifest, vocabulary):
                    write(document)
                    seen.add(document.doc_id)
                    impacts = document.vector.values()
                    found["documents"] += 1
                    found["empty"] += not impacts
                    found["postings"] += len(impacts)
                    found["impacts"] += sum(impacts)
                    found["max_impact"] = max(found["max_impact"], max(impacts, default=0))
                    progress(1)
                seen.refuse_twice(lambda: read_ids(shards, manifest))
                expect_counts(str(shards), found, manifest.counts)
                if not found["documents"]:
                    raise ArtefactError(f"{shards}: no document; nothing to index")
            held = count_index(part)
            expect_counts(f"{index} after writing", held, found)
            write_report(part, {"engine": "lucene", **found, "bytes": folder_bytes(part)})
        return Index(index, manifest, found["documents"])

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One list per query; all terms of a query count, however many or frequent they are.

        Raises:
            UsageError: a weight is no integer >= 1, or `hits` is below 1.
            ArtefactError: a score could reach 2^24, from where float32 rounds; the message proposes bits.
        """
        if hits < 1:
            raise UsageError(f"hits is {hits}, expected at least 1")
        for query in queries:
            yield self._search_one(query, hits) if query.vector else []

    def bound(self, vector: Mapping[str, int]) -> int:
        """The highest score that any document could reach: sum over terms of weight x greatest impact."""
        if self.max_impact is not None:
            quick = self.max_impact * sum(vector.values())
            if quick < SCORE_LIMIT:
                return quick
        return sum(weight * self.max_impact_of(term) for term, weight in vector.items())

    def max_impact_of(self, term: str) -> int:
        """The greatest impact of a term in the index, 0 if it has no posting: the score of its best document."""
        if term not in self._max_impact_of:
            best = self._top(ImpactQuery("", {term: 1}), 1)
            self._max_impact_of[term] = int(best[0].score) if best else 0
        return self._max_impact_of[term]

    def close(self) -> None:
        """Closes Lucene's files."""
        self.reader.close()

    def _search_one(self, query: ImpactQuery, hits: int) -> list[ScoredDoc]:
        # numpy's integers are not JSON, and a float weight would be truncated by Lucene without a word.
        vector = {term: int(weight) for term, weight in query.vector.items()}
        if vector != query.vector or min(vector.values()) < 1:
            raise UsageError(f"topic {query.query_id!r}: weights must be integers >= 1; quantise the query first")
        self._refuse_rounding(query.query_id, vector)
        return self._top(ImpactQuery(query.query_id, vector), hits)

    def _top(self, query: ImpactQuery, hits: int) -> list[ScoredDoc]:
        """What Lucene finds, as it is."""
        with java_errors(f"topic {query.query_id!r} cannot be searched"):
            weights = self.weights.readValue(orjson.dumps(query.vector).decode())
            boolean = java_cast("org.apache.lucene.search.Query", self.generator.buildQuery(CONTENTS, weights))
            top = self.searcher.search(boolean, min(hits, self.documents), self.order, False)
            found = orjson.loads(self.json.writeValueAsString(top))["scoreDocs"]
        scored = []
        for rank, hit in enumerate(found, start=1):
            score, doc_id = hit["fields"]
            start = doc_id["offset"]
            raw = base64.b64decode(doc_id["bytes"])[start : start + doc_id["length"]]
            scored.append(ScoredDoc(query.query_id, raw.decode(), rank, score))
        return scored

    def _refuse_rounding(self, query_id: str, vector: Mapping[str, int]) -> None:
        bound = self.bound(vector)
        if bound >= SCORE_LIMIT:
            bits = ceil(log2((bound + 1) / SCORE_LIMIT))
            raise ArtefactError(
                f"topic {query_id!r}: its score could reach {bound:,}, above {SCORE_LIMIT - 1:,} up to which Lucene's "
                f"scores are exact; quantise queries (or documents) with {bits} bit{'s' * (bits > 1)} less"
            )


def _impact_similarity() -> Any:
    return java_class("io.anserini.search.similarity.ImpactSimilarity")()


def _open_reader(index: Path) -> Any:
    folder = java_class("org.apache.lucene.store.FSDirectory").open(_java_path(index))
    return java_class("org.apache.lucene.index.DirectoryReader").open(folder)


def _as_reader(reader: Any) -> Any:
    """For pyjnius, which does not choose overloads by a parent class."""
    return java_cast("org.apache.lucene.index.IndexReader", reader)


def _java_path(path: Path) -> Any:
    return java_class("java.nio.file.Paths").get(str(path.absolute()))


def _java_map(values: Mapping[str, str]) -> Any:
    java_map = java_class("java.util.HashMap")()
    for key, value in values.items():
        java_map.put(key, value)
    return java_map


def _analyzer() -> Any:
    """Splits `term\\x01impact term\\x01impact ...` at white space and reads each impact as the term's frequency."""
    builder = java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
    tokenizer = {"rule": "java", "maxTokenLen": str(MAX_TOKEN_LENGTH)}
    builder = builder.withTokenizer("whitespace", _java_map(tokenizer))
    return builder.addTokenFilter("delimitedTermFrequency", _java_map({"delimiter": DELIMITER})).build()


def _writer_config() -> Any:
    config = java_class("org.apache.lucene.index.IndexWriterConfig")(_analyzer())
    config.setSimilarity(_impact_similarity())
    config.setUseCompoundFile(False)
    config.setRAMBufferSizeMB(RAM_BUFFER_MB)
    config.setOpenMode(java_class("org.apache.lucene.index.IndexWriterConfig$OpenMode").CREATE)
    return config


def _contents_field() -> Any:
    """A field like Anserini's: frequencies, no positions, nothing stored."""
    field_type = java_class("org.apache.lucene.document.FieldType")()
    field_type.setStored(False)
    field_type.setTokenized(True)
    field_type.setIndexOptions(java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
    field_type.freeze()
    empty = java_cast("java.lang.CharSequence", java_class("java.lang.String")(""))
    return java_class("org.apache.lucene.document.Field")(CONTENTS, empty, field_type)


@contextmanager
def _writer(folder: Path) -> Iterator[Any]:
    """Yields `write(document)`; commits at the end, or rolls back so that no lock is left in this process."""
    directory = java_class("org.apache.lucene.store.FSDirectory").open(_java_path(folder))
    writer = java_class("org.apache.lucene.index.IndexWriter")(directory, _writer_config())
    bytes_ref = java_class("org.apache.lucene.util.BytesRef")
    stored = java_class("org.apache.lucene.document.Field$Store").YES
    doc_id = java_class("org.apache.lucene.document.StringField")(ID, "", stored)
    sort_id = java_class("org.apache.lucene.document.BinaryDocValuesField")(ID, bytes_ref(b""))
    contents = _contents_field()
    # One document and its fields serve all, only their values change: that is the cheap way in Lucene.
    fields = java_class("org.apache.lucene.document.Document")()
    for field in (doc_id, sort_id, contents):
        fields.add(field)
    fields = java_cast("java.lang.Iterable", fields)

    def write(document: ImpactDocument) -> None:
        doc_id.setStringValue(document.doc_id)
        sort_id.setBytesValue(bytes_ref(document.doc_id.encode()))
        contents.setStringValue(" ".join([f"{term}{DELIMITER}{impact}" for term, impact in document.vector.items()]))
        writer.addDocument(fields)

    try:
        yield write
        writer.commit()
        writer.close()
    except BaseException:
        writer.rollback()
        raise
    finally:
        directory.close()


def count_index(index: Path) -> dict[str, int]:
    """What a Lucene index holds, as its own statistics say."""
    reader = _open_reader(index)
    try:
        terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(_as_reader(reader), CONTENTS)
        documents = int(reader.maxDoc())
        return {
            "documents": documents,
            "empty": documents - (int(terms.getDocCount()) if terms else 0),
            "postings": int(terms.getSumDocFreq()) if terms else 0,
            "impacts": int(terms.getSumTotalTermFreq()) if terms else 0,
        }
    finally:
        reader.close()
