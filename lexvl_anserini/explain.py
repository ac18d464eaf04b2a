"""Why a document has its score: the terms that it shares with the query."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from lexvl_anserini.cli import DataDir, Settings, ShardsManifest, Style, Verbose, expand_options, parse_settings, run
from lexvl_anserini.engines.index_folder import BuiltIndex
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import RunManifest, read_run_manifest
from lexvl_anserini.ground.records import ImpactQuery, Topic
from lexvl_anserini.queries.query_source import TYPED, build_typed_topic, find_topic_source, find_vocabulary_file
from lexvl_anserini.searching.search import EncoderChanges
from lexvl_anserini.searching.searcher import EXPLAINED_HITS, Searcher
from lexvl_anserini.searching.shared_terms import (
    Explanation,
    cut_like_run,
    encode_topic,
    find_topic,
    read_passages,
    read_scores,
    select_encoder_options,
    warn_about_scores,
)

log = logging.getLogger("lexvl_anserini.explain")  # __name__ is "__main__" when the module runs as the command

DEFAULT_TERMS = 20


@dataclass(frozen=True)
class ExplainedOptions:
    """The query, its index, and the documents to explain."""

    index: Annotated[str, typer.Option(help="Folder of an impact index, or its URL in a store.")]
    query: Annotated[str | None, typer.Option(help="Explain this text.")] = None
    query_image: Annotated[
        str | None, typer.Option(help="Explain this image; for encoders whose query side reads images.")
    ] = None
    topics: Annotated[
        str | None,
        typer.Option(help="Take the query from here: dataset/split, a topics file, or encoded queries Q.jsonl[.gz]."),
    ] = None
    query_id: Annotated[str | None, typer.Option(help="Which of the topics.")] = None
    run_file: Annotated[
        Path | None, typer.Option("--run", help="Explain the best hits of this run; its topics unless --topics.")
    ] = None
    doc_ids: Annotated[list[str] | None, typer.Option("--doc-id", help="Explain this document; repeatable.")] = None
    passages: Annotated[
        str | None,
        typer.Option(help="Explain documents of passages DOC#N: max, sum:N or sum, as in search; default the run's."),
    ] = None
    hits: Annotated[int, typer.Option(min=1, help="Without --doc-id: explain that many best hits.")] = EXPLAINED_HITS

    def check(self) -> None:
        """Raises UsageError unless there is one query."""
        typed = self.query is not None or self.query_image is not None
        if typed == (self.query_id is not None) or (typed and (self.topics or self.run_file)):
            raise UsageError("give --query TEXT, --query-image PATH, or --query-id Q (with --topics T or --run R)")

    def find_query(
        self, index: BuiltIndex, run: RunManifest | None, data_dir: str | None, shards_manifest: Path | None
    ) -> Topic | ImpactQuery:
        """Returns the query: the typed one, or one of the topics."""
        if self.query_id is None:
            return build_typed_topic(self.query, self.query_image)
        topics = self.topics or (f"{run.dataset}/{run.split}" if run and run.dataset else None)
        vocabulary = find_vocabulary_file(index.path, shards_manifest)
        folder = data_dir or (run.data_dir if run else None)
        return find_topic(find_topic_source(topics, index.path, index.manifest, folder, vocabulary), self.query_id)


@expand_options
def command(
    chosen: ExplainedOptions,
    terms: Annotated[int, typer.Option(min=1, help="Terms printed per document; json has all.")] = DEFAULT_TERMS,
    *,
    encoder: EncoderChanges,
    settings: Settings = None,
    data_dir: DataDir = None,
    manifest: ShardsManifest = None,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Explain scores: the terms that query and document share, with weight, impact and product.

    Example: python -m lexvl_anserini.explain --index indexes/demo --query "a ship in the moonlight" --hits 2
    """
    chosen.check()
    about_run = read_run_manifest(chosen.run_file) if chosen.run_file else None
    options = {**select_encoder_options(about_run), **parse_settings(settings or ())}
    with Searcher(chosen.index, encoder=replace(encoder, options=options), manifest=manifest) as searcher:
        index = searcher.index
        query = chosen.find_query(index, about_run, data_dir, manifest)
        if isinstance(query, Topic) and index.manifest.kind == "impact":
            query = encode_topic(query, searcher.model, index.manifest)
        if isinstance(query, ImpactQuery):
            query = cut_like_run(query, about_run)
        scores = {}
        if chosen.run_file and chosen.query_id:
            scores = read_scores(chosen.run_file, chosen.query_id, chosen.hits)
        doc_ids = chosen.doc_ids or list(scores) or None
        explanations = searcher.explain(query, doc_ids, chosen.hits, chosen.passages or read_passages(about_run))
    if chosen.run_file:
        warn_about_scores(chosen.run_file, scores, explanations)
    if style == "json":
        sys.stdout.write(orjson.dumps([e.to_json() for e in explanations]).decode() + "\n")
        return
    if not explanations:
        log.info("no document has a term of the query")
    typer.echo("\n\n".join(to_text(e, terms) for e in explanations))


def to_text(explanation: Explanation, terms: int, what: str = "document") -> str:
    """Aligned columns: term, query weight, impact, product, and the share of the score up to here."""
    shared = explanation.terms
    query = "" if explanation.query_id == TYPED else f"query {explanation.query_id}, "
    first = f"{query}{what} {explanation.doc_id}: score {explanation.score}, "
    if parts := explanation.passages:
        of_parts = "of its best passage" if len(parts) == 1 else f"the sum of {len(parts)} passages"
        return "\n".join([first + of_parts, *(to_text(part, terms, "passage") for part in parts)])
    sums = ", ".join(
        f"{field} {value} ({value / explanation.score:.1%})" for field, value in explanation.sum_fields().items()
    )
    lines = [f"{first}{len(shared)} of {explanation.query_terms} query terms{f'; {sums}' if sums else ''}"]
    if not shared:
        return lines[0]
    width = max(4, *(len(term.term) for term in shared[:terms]))
    lines.append(f"  {'term':{width}}  weight  impact   product   share")
    so_far: float = 0
    for term in shared[:terms]:
        so_far += term.product
        share = so_far / explanation.score
        lines.append(f"  {term.term:{width}}  {term.weight:6}  {term.impact:6}  {term.product:8}  {share:6.1%}")
    if rest := shared[terms:]:
        lines.append(f"  {len(rest)} more, together {sum(term.product for term in rest)}")
    return "\n".join(lines)


if __name__ == "__main__":
    run(command)
