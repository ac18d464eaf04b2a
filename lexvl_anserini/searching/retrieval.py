"""`search_index`, and the search of one index by the commands, which writes runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.engines.index_folder import BuiltIndex
from lexvl_anserini.engines.opening import engine_of
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.installed import versions_of
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ScoredDoc, Topic
from lexvl_anserini.queries.clauses import Clause, Query, TreeQuery
from lexvl_anserini.queries.query_source import TYPED, TopicSource, check_readable, check_terms
from lexvl_anserini.runs.trec import DEFAULT_HITS, write_run
from lexvl_anserini.searching.refine import Refinement
from lexvl_anserini.searching.searcher import EncoderChanges, SearchCost, Searcher, check_counts, refuse_other_kinds

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


def search_index(
    index: BuiltIndex | Path | str,
    topics: str | Query | Iterable[str | Query],
    hits: int = DEFAULT_HITS,
    remove_query: bool = False,
    threads: int = 1,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
    batch_size: int = 32,
    tally: SearchCost | None = None,
    refinement: Refinement | None = None,
    feedback_shards: Path | str | None = None,
) -> Iterator[list[ScoredDoc]]:
    """Searches an index; yields one ranked list per topic, in their order, empty where nothing matches.

    Args:
        index: an index, its folder, or its URL in a store.
        topics: topics, encoded here; or encoded queries, or query trees. All of one type. One of them may be given by
            itself, and a text in place of a topic; the topics of several texts have the ids 1, 2, ...
        hits: length of a list at most.
        remove_query: leave out a document whose id is the topic's (BEIR's rule), before the cut.
        threads: of the engine, where it can use more than one.
        model: encodes the topics; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.
        batch_size: topics per forward pass.
        tally: counts what the search costs.
        refinement: lists of terms, cuts, filters, texts and feedback, for an impact index.
        feedback_shards: the index's shards, for feedback where the index holds no term vectors.

    Raises:
        ArtefactError: not an index, or its vocabulary is not the model's.
        UsageError: a topic that the encoder cannot read, or a query of another kind than the index.
    """
    check_counts(hits, threads, batch_size)
    searcher = Searcher(index, model, EncoderChanges(device=device), manifest)
    lists = searcher.lists(topics, hits, remove_query, threads, batch_size, tally, refinement, feedback_shards)
    return to_the_end(searcher, lists)


def to_the_end(searcher: Searcher, lists: Iterator[list[ScoredDoc]]) -> Iterator[list[ScoredDoc]]:
    """Passes lists on; closes their searcher after the last, or where they are left."""
    with searcher:
        yield from lists


@dataclass(frozen=True)
class IndexSearch:
    """A search of one index, ready for its queries.

    index             the index
    encoder           changes of its encoder
    refinement        of every query; None for none
    refinement_note   the user's refinement options, for the run's manifest
    threads, batch_size, feedback_shards   as for `search_index`
    """

    index: BuiltIndex
    encoder: EncoderChanges = EncoderChanges()
    refinement: Refinement | None = None
    refinement_note: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    batch_size: int = 32
    feedback_shards: str | None = None

    def check(self, vocabulary: Path | None, tree: Clause | None = None) -> None:
        """Checks the refinement, and a query tree, against the index before anything is loaded.

        Args:
            vocabulary: `vocab.txt` of the index, if there is one.
            tree: a query that the user typed.
        """
        if self.refinement is not None:
            refuse_other_kinds(self.index.manifest, self.index.path)
        for clause in (tree, self.refinement and self.refinement.where):
            if clause:
                check_terms(clause, vocabulary, self.index.manifest)

    def searcher(self) -> Searcher:
        """The index and its encoder, to be opened."""
        return Searcher(self.index, encoder=self.encoder)

    def one(self, query: Clause | Topic, hits: int, searcher: Searcher) -> list[ScoredDoc]:
        """The hits of a typed query: a query tree, or a topic that is encoded first."""
        if isinstance(query, Topic):
            check_readable(query, searcher.model)
        typed = query if isinstance(query, Topic) else TreeQuery(TYPED, query)
        [hits_of_topic] = searcher.lists(
            [typed], hits, threads=self.threads, refinement=self.refinement, feedback_shards=self.feedback_shards
        )
        return hits_of_topic

    def run_manifest(
        self, source: TopicSource, hits: int, remove_query: bool, strict_scores: bool, output_format: str
    ) -> RunManifest:
        """The manifest of a run that is to be written."""
        about = self.index.manifest
        return RunManifest(
            topics=source.label,
            topics_sha256=source.sha256 or source.digest(),
            dataset=source.judged.name if source.judged else "",
            split=(source.judged.split or "") if source.judged else "",
            data_dir=source.judged.data_dir if source.judged else None,
            corpus=about.corpus,
            encoder=self.encoder.entry(about, self.refinement_note),
            quantiser=about.quantiser,
            index=self.index.path.name,
            hits=hits,
            remove_query=remove_query,
            strict_scores=strict_scores,
            output_format=output_format,
            versions=versions_of(VERSIONED),
        )

    def write(self, source: TopicSource, wanted: RunManifest, run: Path, progress: Progress = silent) -> RunManifest:
        """Searches all topics of a source and writes their run; returns its manifest with counts and efficiency.

        Raises:
            DataError: there is no topic.
        """
        stream = source.stream()
        first = next(stream, None)
        if first is None:
            raise DataError(f"{source.label}: no topic; nothing to search")
        tally, searcher = SearchCost(), self.searcher()
        lists = searcher.lists(
            chain([first], stream),
            wanted.hits,
            wanted.remove_query,
            self.threads,
            self.batch_size,
            tally,
            self.refinement,
            self.feedback_shards,
        )
        figures = partial(tally.efficiency, self.index.manifest, self.index.path)
        return write_run(run, _watched(to_the_end(searcher, lists), progress), wanted, wanted.encoder.name, figures)


def texts_of(documents: list[ScoredDoc], index: BuiltIndex, data_dir: str | None) -> dict[str, str]:
    """The contents of some documents: stored in the index, else found by reading their corpus once."""
    from lexvl_anserini.data.dataset import dataset_of

    engine = engine_of(index.path, index.manifest.kind)
    if (stored := engine.stored_texts(index.path, [document.doc_id for document in documents])) is not None:
        return stored
    dataset = dataset_of(index.manifest.corpus.ref.at(data_dir))
    wanted = {document.doc_id for document in documents}
    return {d.doc_id: d.contents or str(d.image or "") for d in dataset.documents() if d.doc_id in wanted}


def _watched(lists: Iterable[list[ScoredDoc]], progress: Progress) -> Iterator[list[ScoredDoc]]:
    for documents in lists:
        yield documents
        progress(1)
