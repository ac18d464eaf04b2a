"""Older protocols of images with captions: the first captions of each image, and the mean over folds of the images.

COCO 1k is five folds of 1,000 of the 5,000 test images, in the order of Karpathy's file, each searched by itself. The
lists of a run are cut to the images and captions of a fold, so that one run serves all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Measurement, Qrel
from lexvl_anserini.runs.trec import lists_of

from .inputs import Judgements, JudgementSource, RunCard, choose_source, read_judgements
from .measure_runs import measure_runs
from .names import parse_measures


class Subsets(NamedTuple):
    """Which captions and images count.

    captions  of each image, the first ones of the file; None for all
    folds     of the images; the values are means over them
    """

    captions: int | None = None
    folds: int = 1

    @property
    def is_whole(self) -> bool:
        """True if everything counts, at once."""
        return self.captions is None and self.folds == 1

    def __str__(self) -> str:
        """What follows the name of the dataset in tables."""
        captions = f"{self.captions} captions per image" if self.captions else ""
        folds = f"mean of {self.folds} folds" if self.folds > 1 else ""
        return ", ".join(filter(None, (captions, folds)))


def measure_subsets(
    card: RunCard, source: JudgementSource, measures: Sequence[str], subsets: Subsets, ties: str | None = None
) -> list[Measurement]:
    """The means of a run over its subsets, as `measure_runs` returns them for all judged topics.

    Raises:
        UsageError: fewer images than folds, or lists that are too short for a fold.
    """
    chosen = choose_source(card, source)
    judged, lists = read_judgements(chosen), lists_of(card.path)
    deepest = max((measure.k or 0 for measure in parse_measures(measures)), default=0)
    rows: list[list[Measurement]] = []
    with TemporaryDirectory(prefix="lexvl-folds-") as folder:
        for number, qrels in enumerate(qrels_of(judged, chosen.corpus.direction or "", subsets)):
            doc_ids = {qrel.doc_id for qrel in qrels}
            of_fold = {
                query_id: [hit for hit in lists.get(query_id, ()) if hit.doc_id in doc_ids]
                for query_id in dict.fromkeys(qrel.query_id for qrel in qrels)
            }
            needed = min(deepest, len(doc_ids))
            short = sum(
                len(hits) < needed and len(lists.get(topic, ())) == card.hits for topic, hits in of_fold.items()
            )
            if short:
                raise UsageError(
                    f"{card.path}: {short} lists of {card.hits} hits hold fewer than {needed} documents of a fold; "
                    "search with more --hits"
                )
            run, judgements = Path(folder) / f"{number}.trec", Path(folder) / f"{number}.qrels"
            run.write_text(
                "".join(
                    f"{topic} Q0 {hit.doc_id} {rank} {hit.score!r} fold\n"
                    for topic, hits in of_fold.items()
                    for rank, hit in enumerate(hits, 1)
                ),
                encoding="utf-8",
            )
            judgements.write_text(
                "".join(f"{q.query_id} 0 {q.doc_id} {q.relevance}\n" for q in qrels), encoding="utf-8"
            )
            [measured] = measure_runs(
                [replace(card, path=run)], JudgementSource(judgements, CorpusRef(judged.label)), measures, ties=ties
            )
            rows.append([row for row in measured if row.query_id == "all"])
    return [
        of_measure[0]._replace(
            run=str(card.path),
            dataset=f"{judged.label} ({subsets})",
            value=float(np.mean([row.value for row in of_measure])),
        )
        for of_measure in zip(*rows, strict=True)
    ]


def qrels_of(judged: Judgements, direction: str, subsets: Subsets) -> Iterator[list[Qrel]]:
    """The judgements of each fold, in the order of the images."""
    images_ask = direction == "image-to-text"
    by_image: dict[str, list[Qrel]] = {}
    for qrel in judged.qrels:
        by_image.setdefault(qrel.query_id if images_ask else qrel.doc_id, []).append(qrel)
    if len(by_image) < subsets.folds:
        raise UsageError(f"{judged.label}: {len(by_image)} images, fewer than {subsets.folds} folds")
    for fold in np.array_split(np.array([*by_image], dtype=object), subsets.folds):
        yield [qrel for image in fold for qrel in by_image[image][: subsets.captions]]
