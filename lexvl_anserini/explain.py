"""Why a document has its score: the terms that it shares with the query.

python -m lexvl_anserini.explain --index indexes/scifact --query "vitamin D and bone density" --doc-id 4983
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer

from lexvl_anserini.cli import QueryEncoderOptions, Style, Verbose, expanded, run
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.opening import index_path
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest, RunManifest, read_run_manifest
from lexvl_anserini.ground.records import ImpactQuery, Topic
from lexvl_anserini.queries.query_source import TYPED, build_typed_topic, find_topic_source, find_vocabulary_file
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.searcher import EncoderChanges
from lexvl_anserini.searching.shared_terms import (
    DEFAULT_HITS,
    Explanation,
    encoded,
    encoder_options,
    explain,
    passages_in_run,
    scores_in_run,
    topic_of,
    warn_of_other_scores,
    with_cuts,
)

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.explain")

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
        str | None, typer.Option("--run", help="Explain the best hits of this run; its topics unless --topics.")
    ] = None
    doc_ids: Annotated[list[str] | None, typer.Option("--doc-id", help="Explain this document; repeatable.")] = None
    passages: Annotated[
        str | None,
        typer.Option(help="Explain documents of passages DOC#N: max, sum:N or sum, as in search; default the run's."),
    ] = None
    hits: Annotated[int, typer.Option(min=1, help="Without --doc-id: explain that many best hits.")] = DEFAULT_HITS

    def check(self) -> None:
        """Raises UsageError unless there is one query."""
        typed = self.query is not None or self.query_image is not None
        if typed == (self.query_id is not None) or (typed and (self.topics or self.run_file)):
            raise UsageError("give --query TEXT, --query-image PATH, or --query-id Q (with --topics T or --run R)")

    def find(
        self, path: Path, manifest: Manifest, run: RunManifest | None, encoder: QueryEncoderOptions
    ) -> Topic | ImpactQuery:
        """The query: typed, or one of the topics of an index's folder."""
        if self.query_id is None:
            return build_typed_topic(self.query, self.query_image)
        topics = self.topics or (f"{run.dataset}/{run.split}" if run and run.dataset else None)
        data_dir = encoder.data_dir or (run.data_dir if run else None)
        vocabulary = find_vocabulary_file(path, Path(encoder.manifest) if encoder.manifest else None)
        return topic_of(find_topic_source(topics, path, manifest, data_dir, vocabulary), self.query_id)


@expanded
def command(
    chosen: ExplainedOptions,
    terms: Annotated[int, typer.Option(min=1, help="Terms printed per document; json has all.")] = DEFAULT_TERMS,
    *,
    encoder: QueryEncoderOptions,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Explain scores: the terms that query and document share, with weight, impact and product.

    Example: python -m lexvl_anserini.explain --index indexes/demo --query "a ship in the moonlight" --hits 2
    """
    chosen.check()
    path = index_path(chosen.index)
    manifest = index_manifest(path, Path(encoder.manifest) if encoder.manifest else None)
    run_path = Path(chosen.run_file) if chosen.run_file else None
    run_manifest = read_run_manifest(run_path) if run_path else None
    query = chosen.find(path, manifest, run_manifest, encoder)
    if isinstance(query, Topic) and manifest.kind == "impact":
        options = {**encoder_options(run_manifest), **encoder.changes()}
        changes = EncoderChanges(encoder.checkpoint, encoder.tokenizer, options, encoder.device)
        query = encoded(query, changes.load(manifest), manifest)
    if isinstance(query, ImpactQuery):
        query = with_cuts(query, run_manifest)
    scores = scores_in_run(run_path, chosen.query_id, chosen.hits) if run_path and chosen.query_id else {}
    opened = Index(path, manifest)
    doc_ids = chosen.doc_ids or list(scores) or None
    passages = chosen.passages or passages_in_run(run_manifest)
    explanations = explain(opened, query, doc_ids, chosen.hits, passages=passages)
    if run_path:
        warn_of_other_scores(run_path, scores, explanations)
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
        f"{field} {value} ({value / explanation.score:.1%})" for field, value in explanation.by_field().items()
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
