"""Why a document has its score: the terms it shares with the query, whose products sum exactly to the score.

python -m lexvl_anserini.explain --index indexes/scifact --query "vitamin D and bone density" --doc-id 4983
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import orjson
import typer

from lexvl_anserini.cli import DataDir, Verbose, check_style, parse_settings, run
from lexvl_anserini.encode import encode_queries
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.opening import open_impact_index
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.manifest import Manifest, RunManifest, read_run_manifest
from lexvl_anserini.queries.clauses import All, Ids, Impacts
from lexvl_anserini.queries.refine import Refinement, refinement_names
from lexvl_anserini.queries.topics import TYPED, check_readable, topic_source, typed_topic, vocabulary_file
from lexvl_anserini.ranking.runs import in_rank_order, read_run
from lexvl_anserini.records import ImpactQuery, Index, Topic

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import ImpactEngine

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.explain")

DEFAULT_HITS = 3
DEFAULT_TERMS = 20


class SharedTerm(NamedTuple):
    """A term of query and document: product = weight x impact."""

    term: str
    weight: int
    impact: int
    product: int


@dataclass(frozen=True)
class Explanation:
    """One document's score for one query.

    score        as Lucene gives it; 0 for a document that shares no term
    terms        that both have, largest product first, equal ones by term; their products sum to the score
    query_terms  how many the query has
    """

    query_id: str
    doc_id: str
    score: int
    terms: tuple[SharedTerm, ...]
    query_terms: int

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {**vars(self), "terms": [term._asdict() for term in self.terms]}


def explain(
    index: Index | Path | str,
    query: Topic | ImpactQuery | str,
    doc_ids: Iterable[str] | None = None,
    hits: int = DEFAULT_HITS,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
) -> list[Explanation]:
    """Explains documents' scores for a query, from the postings of its terms.

    Args:
        index: an impact index, or its folder.
        query: a topic or a text, encoded here; or a query that is encoded already.
        doc_ids: the documents, in the order of the explanations; default the best.
        hits: how many of the best.
        model: encodes the topic; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.

    Raises:
        DataError: the index has no such document.
        UsageError: no impact index, or a topic that the encoder does not read.
        ArtefactError: the products do not sum to Lucene's score, which only a damaged index brings about.
    """
    path = index.path if isinstance(index, Index) else Path(index)
    about = index.manifest if isinstance(index, Index) else index_manifest(path, Path(manifest) if manifest else None)
    if about.kind != "impact":
        raise UsageError(f"{path} is {about.kind}; only the score of an impact index is a sum over terms")
    asked = Topic("query", query) if isinstance(query, str) else query
    if isinstance(asked, Topic):
        asked = encoded(
            asked, model or load_encoder_of(about.encoder, device=device, vocabulary=about.vocabulary_digest), about
        )
    engine = open_impact_index(path, about)
    try:
        if doc_ids is None:
            doc_ids = [document.doc_id for document in next(engine.search([asked], hits))]
        return explained(engine, asked, list(doc_ids))
    finally:
        engine.close()


def encoded(topic: Topic, model: Encoder, manifest: Manifest) -> ImpactQuery:
    """The query of one topic."""
    check_readable(topic, model)
    query = next(encode_queries(model, [topic], manifest))
    assert isinstance(query, ImpactQuery)
    return query


def explained(engine: ImpactEngine, query: ImpactQuery, doc_ids: Sequence[str]) -> list[Explanation]:
    """The explanations, with an open engine of an impact index.

    Raises:
        DataError, ArtefactError: as `explain`.
    """
    if not doc_ids:
        return []
    among = All((Impacts(query.vector), Ids(tuple(doc_ids))))
    scores = {hit.doc_id: hit.score for hit in engine.search_tree(query.query_id, among, len(doc_ids))}
    explanations = []
    for doc_id in doc_ids:
        impacts = engine.impacts(doc_id, query.vector)
        shared = [SharedTerm(t, w, impacts[t], w * impacts[t]) for t, w in query.vector.items() if t in impacts]
        shared.sort(key=lambda term: (-term.product, term.term))
        total = sum(term.product for term in shared)
        if total != scores.get(doc_id, 0):
            raise ArtefactError(
                f"document {doc_id!r}: its products sum to {total}, Lucene's score is {scores.get(doc_id, 0)}; "
                "index again"
            )
        explanations.append(Explanation(query.query_id, doc_id, total, tuple(shared), len(query.vector)))
    return explanations


def documents_of_run(path: Path, query_id: str, hits: int) -> dict[str, float]:
    """The first documents of a topic in a run, best first, and their scores there.

    Raises:
        DataError: the run has no such topic, or is malformed.
    """
    found = in_rank_order(document for document in read_run(path) if document.query_id == query_id)
    if not found:
        raise DataError(f"{path}: no line for topic {query_id!r}")
    return {document.doc_id: document.score for document in found[:hits]}


def encoder_options(run: RunManifest | None) -> dict[str, Any]:
    """The encoder's own options that a run was made with."""
    options = run.encoder.get("options") or {} if run else {}
    return {name: value for name, value in options.items() if name not in refinement_names()}


def as_cut(query: Any, run: RunManifest | None) -> Any:
    """The query with the cuts that a run was made with; what else refined it is told as another score."""
    options = run.encoder.get("options") or {} if run else {}
    cuts = {name: options[name] for name in ("query_terms", "threshold") if name in options}
    return query._replace(vector=Refinement(**cuts).cut(query.vector)) if isinstance(query, ImpactQuery) else query


def warn_of_other_scores(run_path: Path, scores: dict[str, float], explanations: Sequence[Explanation]) -> None:
    """Says so where a run has other scores than the explained query, because it was made in another way."""
    if differing := [e for e in explanations if e.doc_id in scores and scores[e.doc_id] != e.score]:
        first = differing[0]
        log.warning(
            "%s: %d of %d documents have another score there (%s: %g, here %d); it was made by another query or index",
            run_path,
            len(differing),
            len(explanations),
            first.doc_id,
            scores[first.doc_id],
            first.score,
        )


def to_text(explanation: Explanation, terms: int) -> str:
    """Aligned columns: term, query weight, impact, product, and the share of the score up to here."""
    shared = explanation.terms
    asked = "" if explanation.query_id == TYPED else f"query {explanation.query_id}, "
    lines = [
        f"{asked}document {explanation.doc_id}: score {explanation.score}, "
        f"{len(shared)} of {explanation.query_terms} query terms"
    ]
    if not shared:
        return lines[0]
    width = max(4, *(len(term.term) for term in shared[:terms]))
    lines.append(f"  {'term':{width}}  weight  impact   product   share")
    so_far = 0
    for term in shared[:terms]:
        so_far += term.product
        share = so_far / explanation.score
        lines.append(f"  {term.term:{width}}  {term.weight:6}  {term.impact:6}  {term.product:8}  {share:6.1%}")
    if rest := shared[terms:]:
        lines.append(f"  {len(rest)} more, together {sum(term.product for term in rest)}")
    return "\n".join(lines)


def command(
    index: Annotated[str, typer.Option(help="Folder of an impact index.")],
    query: Annotated[str | None, typer.Option(help="Explain this text.")] = None,
    query_image: Annotated[
        str | None, typer.Option(help="Explain this image; for encoders whose query side reads images.")
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(help="Take the query from here: dataset/split, a topics file, or encoded queries Q.jsonl[.gz]."),
    ] = None,
    query_id: Annotated[str | None, typer.Option(help="Which of the topics.")] = None,
    run_file: Annotated[
        str | None, typer.Option("--run", help="Explain the best hits of this run; its topics unless --topics.")
    ] = None,
    doc_ids: Annotated[list[str] | None, typer.Option("--doc-id", help="Explain this document; repeatable.")] = None,
    hits: Annotated[int, typer.Option(min=1, help="Without --doc-id: explain that many best hits.")] = DEFAULT_HITS,
    terms: Annotated[int, typer.Option(min=1, help="Terms printed per document; json has all.")] = DEFAULT_TERMS,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the query side, KEY=VALUE; repeatable.")
    ] = None,
    data_dir: DataDir = None,
    manifest: Annotated[
        str | None, typer.Option(help="manifest.json of the shards, for an index that stock Pyserini built.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint lies now.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Where its tokenizer lies now.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    style: Annotated[str, typer.Option("--format", help="Of the explanations: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Explain scores: the terms that query and document share, with weight, impact and product.

    Example: python -m lexvl_anserini.explain --index indexes/demo --query "a ship in the moonlight" --hits 2
    """
    check_style(style)
    typed = query is not None or query_image is not None
    if typed == (query_id is not None) or (typed and (topics or run_file)):
        raise UsageError("give --query TEXT, --query-image PATH, or --query-id Q (with --topics T or --run R)")
    path, manifest_file = Path(index), Path(manifest) if manifest else None
    about = index_manifest(path, manifest_file)
    of_run = read_run_manifest(Path(run_file)) if run_file else None
    if query_id is None:
        asked: Any = typed_topic(query, query_image)
    else:
        name = topics or (f"{of_run.dataset}/{of_run.split}" if of_run and of_run.dataset else None)
        where = data_dir or (of_run.data_dir if of_run else None)
        asked = topic_of(name, query_id, path, about, where, vocabulary_file(path, manifest_file))
    if isinstance(asked, Topic) and about.kind == "impact":
        options = {**encoder_options(of_run), **parse_settings(settings or ())}
        asked = encoded(
            asked,
            load_encoder_of(about.encoder, checkpoint, tokenizer, device, options, vocabulary=about.vocabulary_digest),
            about,
        )
    scores = documents_of_run(Path(run_file), query_id, hits) if run_file and query_id else {}
    opened = Index(path, about, about.counts["documents"])
    explanations = explain(opened, as_cut(asked, of_run), doc_ids or list(scores) or None, hits)
    if run_file:
        warn_of_other_scores(Path(run_file), scores, explanations)
    if style == "json":
        sys.stdout.write(orjson.dumps([e.to_json() for e in explanations]).decode() + "\n")
        return
    if not explanations:
        log.info("no document has a term of the query")
    typer.echo("\n\n".join(to_text(e, terms) for e in explanations))


def topic_of(
    topics: str | None, query_id: str, index: Path, manifest: Manifest, data_dir: str | None, vocabulary: Path | None
) -> Topic | ImpactQuery:
    """One of the topics, encoded or not.

    Raises:
        DataError: there is none of that id.
    """
    source = topic_source(topics, index, manifest, data_dir, vocabulary)
    for topic in source.stream():
        if topic.query_id == query_id:
            assert isinstance(topic, Topic | ImpactQuery)
            return topic
    raise DataError(f"{source.label}: no topic {query_id!r}")


if __name__ == "__main__":
    run(command)
