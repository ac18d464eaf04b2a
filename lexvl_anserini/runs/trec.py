"""Runs on disk: one system's ranked lists in TREC format, and their manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from lexvl_anserini.data.lines import read_lines
from lexvl_anserini.ground.claims import Claim, claim, ensure
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import atomic_write, compute_sha256, is_same_file, open_gzip
from lexvl_anserini.ground.manifest import Counts, RunManifest, name_manifest, read_run_manifest, write_beside
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.order import RankedList

log = logging.getLogger(__name__)

OUTPUT_FORMATS = ("trec", "msmarco")
DEFAULT_HITS = 1000

# What lines of other numbers of columns are.
HINTS = {
    3: "; an MS MARCO run holds no scores, write it with --output-format trec",
    4: "; judgements have four: are --run and --qrels swapped?",
}

LARGEST_RANK = 2**31 - 1  # the largest rank in a line of a run

# Between two equal scores a strict run keeps at least the spacing of float32 at this magnitude, so that scores
# around zero do not end in denormal numbers.
SMALLEST_MAGNITUDE = 1e-3


def is_finished(output: Path, planned: RunManifest, overwrite: bool) -> bool:
    """True if the run is there and the same request made it; False if it may be written.

    A run of an older version, which does not say what its index held or what its topics show, is made again.
    """
    if output.is_dir():
        raise UsageError(f"{output}: a folder; --output names the run's file, for example {output / 'run.trec'}")
    if not output.exists() or overwrite:
        return False
    with is_same_file(output):
        manifest = read_run_manifest(output)
    if manifest is None:
        raise ArtefactError(f"{output}: exists without {name_manifest(output).name}; --overwrite replaces it")
    texts_alone = planned.topics_sha256.startswith(f"{manifest.topics_sha256}+")
    older = {"index": manifest.index == planned.index_name, "topics_sha256": texts_alone or not manifest.topics_sha256}
    unknown = {name for name, is_so in older.items() if is_so and getattr(planned, name) != getattr(manifest, name)}
    request, earlier = ({k: v for k, v in m.request().items() if k not in unknown} for m in (planned, manifest))
    return claim(output, "a run", request, earlier, overwrite) is Claim.DONE and not unknown


def ensure_run(output: Path, planned: RunManifest, overwrite: bool, write: Callable[[], RunManifest]) -> RunManifest:
    """The manifest of the run that is wanted: of the finished one, or what `write` returns after writing it.

    Nobody else writes the run from the look at it until it is written, so that nothing is computed in vain.
    """

    def make() -> RunManifest:
        if output.exists() and not overwrite:
            log.info("%s: an older version wrote it, without digests of all that decides it; making it again", output)
        return write()

    return ensure(output, lambda: read_run_manifest(output) if is_finished(output, planned, overwrite) else None, make)


def read_run(path: Path, unscored: bool = False) -> Iterator[ScoredDoc]:
    """Reads a TREC run (query-id Q0 doc-id rank score tag), plain, `.gz` or `.zst`, in the order of the file.

    With `unscored`, an MS MARCO run (query-id, doc-id, rank) is read too, with the scores 1 / rank, as MS MARCO's own
    tools convert it; no two documents of a topic have the same rank.
    """
    first = next(read_lines(path), None) if unscored else None
    distinct_ranks = first is not None and len(first.data.split()) == 3
    parse = _parse_unscored if distinct_ranks else _parse
    seen: dict[str, set[str | int]] = {}
    for line in read_lines(path):
        where = line.where
        if b"\r" in line.data:  # columns of several lines might pass for those of one
            raise DataError(f"{where}: a carriage return between columns, expected line feeds at ends of lines")
        scored = parse(line.data, where)
        again = f"a second time for topic {scored.query_id!r}"
        documents = seen.setdefault(scored.query_id, set())
        if scored.doc_id in documents:
            raise DataError(f"{where}: document {scored.doc_id!r} {again}, expected once; keep its best line")
        documents.add(scored.doc_id)
        if distinct_ranks:
            if scored.rank in documents:
                raise DataError(f"{where}: rank {scored.rank} {again}; without scores, ranks must be distinct")
            documents.add(scored.rank)
        yield scored


def read_lists(path: Path) -> dict[str, RankedList]:
    """Per topic the documents of a run, in rank order."""
    lists: dict[str, list[ScoredDoc]] = {}
    for document in read_run(path):
        lists.setdefault(document.query_id, []).append(document)
    return {query_id: sort_by_rank(documents) for query_id, documents in lists.items()}


def sort_by_rank(documents: Iterable[ScoredDoc]) -> RankedList:
    """One topic's list in the order of its system, ranks again from 1.

    That is the order of the ranks if they are distinct and no score rises with them; otherwise (ranks are all 0, or
    scores were changed) the order of `runs.order`.
    """
    import numpy as np

    hits = RankedList.of(documents)
    doc_ids, scores = hits.doc_ids, hits.scores
    order = np.argsort(hits.ranks, kind="stable").tolist()
    ranks, falling = np.asarray(hits.ranks)[order], scores[order]
    if (ranks[1:] == ranks[:-1]).any() or (falling[:-1] < falling[1:]).any():
        order.sort(key=lambda place: (-scores[place], doc_ids[place]))
    return RankedList(hits.query_id, [doc_ids[place] for place in order], scores[order])


def strict_scores(scores: Sequence[float]) -> list[float]:
    """Scores in rank order, lowered by the least amount that makes them fall strictly, also as float32."""
    import numpy as np

    strict: list[float] = []
    ceiling = np.float32(np.inf)
    for score in scores:
        value = np.float32(score)
        if value >= ceiling:
            value = ceiling - np.spacing(np.float32(max(abs(float(ceiling)), SMALLEST_MAGNITUDE)))
        strict.append(float(str(value)))
        ceiling = value
    return strict


def write_run(
    path: Path,
    lists: Iterable[Iterable[ScoredDoc]],
    manifest: RunManifest,
    tag: str = "lexvl",
    measured: Callable[[], Mapping[str, Any]] = dict,
) -> RunManifest:
    """Writes ranked lists, one per topic and in rank order, and the manifest beside them; both or neither.

    The score is the exact integer, or the shortest decimal that reads as the same float; with
    `manifest.strict_scores` see `strict_scores`. Format `msmarco` is query-id, doc-id, rank. A name in `.gz` or
    `.zst` is compressed. `measured` gives fields of the manifest when all lists are written; the manifest is returned
    with the counts and the digest of the run.
    """
    if manifest.output_format not in OUTPUT_FORMATS:
        raise UsageError(f"unknown output format {manifest.output_format!r}; known: {', '.join(OUTPUT_FORMATS)}")
    topics = without = lines = 0
    with atomic_write(path) as out:
        with open_gzip(out, path.suffix) as text:
            for hits in map(RankedList.of, lists):
                topics += 1
                without += not hits
                lines += len(hits)
                if hits:
                    _refuse_unwritable(path, hits, tag)
                    text.write(_format_lines(hits, manifest, tag).encode())
        counts = Counts(topics=topics, topics_without_hits=without, lines=lines)
        out.flush()
        digest = compute_sha256(Path(out.name))
        written = replace(manifest, counts=counts, sha256=digest, **measured())
        write_beside(path, out, written.to_json())
    return written


def _parse(line: bytes, where: str) -> ScoredDoc:
    columns = line.split()
    if len(columns) != 6:
        hint = HINTS.get(len(columns), "")
        raise DataError(f"{where}: {len(columns)} columns, expected 6 (query-id Q0 doc-id rank score tag){hint}")
    query_id, _, doc_id, rank, score, _ = _decode(columns, where)
    try:
        parsed = ScoredDoc(query_id, doc_id, int(rank), float(score))
        # Python reads 1_0 as 10.
        if "_" in rank or "_" in score or abs(parsed.rank) > LARGEST_RANK:
            raise ValueError(rank)
    except ValueError as error:
        raise DataError(
            f"{where}: rank {rank[:40]!r} and score {score[:40]!r}, expected a whole number and a number"
        ) from error
    if not isfinite(parsed.score):
        raise DataError(f"{where}: score {score[:40]!r} is not finite")
    return parsed


def _parse_unscored(line: bytes, where: str) -> ScoredDoc:
    columns = line.split()
    if len(columns) != 3:
        raise DataError(f"{where}: {len(columns)} columns, expected 3 as in the first line (query-id, doc-id, rank)")
    query_id, doc_id, rank = _decode(columns, where)
    if not (rank.isascii() and rank.isdecimal() and 0 < int(rank[:20]) <= LARGEST_RANK):
        columns_of = "three columns (query-id, doc-id, rank) or TREC's six (query-id Q0 doc-id rank score tag)"
        swapped = "in judgements the third is a relevance: are --run and --qrels swapped?"
        expected = f"expected a whole number from 1; a run has {columns_of}; {swapped}"
        raise DataError(f"{where}: rank {rank[:40]!r}, {expected}")
    return ScoredDoc(query_id, doc_id, int(rank), 1 / int(rank))


def _decode(columns: Sequence[bytes], where: str) -> list[str]:
    try:
        return [column.decode() for column in columns]
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason})") from error


def _refuse_unwritable(path: Path, hits: RankedList, tag: str) -> None:
    """Refuses (ArtefactError) a list with a score that is not finite, or with white space in an id or the tag."""
    import numpy as np

    if not np.isfinite(hits.scores).all():
        raise ArtefactError(f"{path}: topic {hits.query_id!r} has a score that is not finite")
    # At the white space that readers of runs split at.
    names = "\n".join((hits.query_id, tag, *hits.doc_ids)).encode()
    if names.split() == names.split(b"\n") and names.count(b"\n") == len(hits) + 1:
        return
    for doc_id in hits.doc_ids:
        if any(len(name.encode().split()) != 1 for name in (hits.query_id, doc_id, tag)):
            what = f"white space in query id {hits.query_id!r}, doc id {doc_id!r} or tag {tag!r}"
            raise ArtefactError(f"{path}: {what}; a run cannot hold it")


def _format_lines(hits: RankedList, manifest: RunManifest, tag: str) -> str:
    if manifest.output_format == "msmarco":
        start = f"{hits.query_id}\t"
        return "".join([f"{start}{doc_id}\t{rank}\n" for doc_id, rank in zip(hits.doc_ids, hits.ranks, strict=True)])
    scores = hits.scores.tolist()
    start, end = f"{hits.query_id} Q0 ", f" {tag}\n"
    # A whole number has no fraction, another is the shortest decimal that reads as the same float.
    falling = strict_scores(scores) if manifest.strict_scores else scores
    written = (str(int(score)) if score.is_integer() else repr(score) for score in falling)
    numbered = zip(hits.doc_ids, hits.ranks, written, strict=True)
    return "".join([f"{start}{doc_id} {rank} {score}{end}" for doc_id, rank, score in numbered])
