"""What encoding costs besides the model's forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval.efficiency.demo_corpus import write_corpus
from eval.efficiency.options import Options
from eval.efficiency.report import Report

DOCUMENTS = 2000


def measure(options: Options) -> Report:
    """Share of the wall time of encoding that is not the model's forward pass (backbone, head and pooling).

    A corpus of demo captions is read from a file and its shards are written, as the command does it, calibration
    included; loading the model is not counted.
    """
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.encoders.parts.towers import LexicalTower
    from lexvl_anserini.shards.writing import write_impacts

    documents = options.one_size(DOCUMENTS)
    checkpoint = options.checkpoint or ("minilm" if options.encoder is None else None)
    model = load_encoder(options.encoder or "vdr", checkpoint)
    forward_s = 0.0
    tower = model.document
    assert isinstance(tower, LexicalTower), "an encoder whose weights come from a network"
    pooled: Callable[..., Any] = tower.pooled

    def timed(*inputs: Any) -> Any:
        nonlocal forward_s
        started = time.perf_counter()
        result = pooled(*inputs)
        forward_s += time.perf_counter() - started
        return result

    tower.pooled = timed  # type: ignore[method-assign, assignment]
    tower.weights(["warm up"] * 64)
    forward_s = 0.0
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "corpus", documents)
        dataset = load_dataset(f"beir:{folder}/corpus")
        started = time.perf_counter()
        manifest = write_impacts(dataset, model, Path(folder) / "impacts")
        wall_s = time.perf_counter() - started
    figures = {
        "documents": manifest.counts["documents"],
        "postings_per_document": round(manifest.counts["postings"] / documents, 1),
        "documents_per_s": round(documents / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "forward_s": round(forward_s, 2),
        "overhead_share": round(1 - forward_s / wall_s, 4),
    }
    return Report(figures)
