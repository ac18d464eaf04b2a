"""The suite of runtimes: torch and ONNX Runtime compute the same towers, in alternating rounds of one process."""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import Encoder, OtherModality, Tower, as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Document

from .suite import Options, Ratio, Report, ratio

# Encoders with packaged checkpoints.
MODELS = (("vdr", "minilm"), ("vdr-crossmodal", "demo-vdr"), ("vdr-crossmodal", "photos-vdr"))
DOCUMENTS, REPEATS = 256, 3


def measure(options: Options) -> Report:
    """CPU time per item of each tower by both runtimes, and how many 8-bit impacts differ.

    Items are captions of the demo, or drawn images. Both runtimes have the same threads; the
    first round of each does not count.

    Raises:
        UsageError: an encoder without a checkpoint, or one that is not lexical.
        MissingExtra: the extra `onnx` is not installed.
    """
    import torch

    if (options.encoder is None) != (options.checkpoint is None):
        raise UsageError("--encoder and --checkpoint go together")
    models = ((options.encoder, options.checkpoint),) if options.encoder and options.checkpoint else MODELS
    threads = options.threads or 1
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # what graphs read when they are loaded
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    for encoder, checkpoint in models:
        with TemporaryDirectory() as folder:
            by_torch, by_graph = both(encoder, checkpoint, Path(folder) / "export")
            for side in ("query", "document"):
                row, times = measured(by_torch, by_graph, side, options)
                rows.append({"checkpoint": checkpoint, "side": side, **row})
                ratios.append(ratio(f"CPU time of torch over onnx, {checkpoint}, {side}", *times))
    settings = {"threads": threads, "batch_size": options.batch_size or 32}
    return Report(rows=tuple(rows), ratios=tuple(ratios), settings=settings)


def both(encoder: str, checkpoint: str, folder: Path) -> tuple[Encoder, Encoder]:
    """An encoder in torch and, exported to `folder`, in ONNX Runtime."""
    from lexvl_anserini.doors.onnx.exporting import export

    model = load_encoder(encoder, checkpoint, device="cpu")
    export(model, folder)
    return model, load_encoder(encoder, str(folder), runtime="onnx")


def inputs_of(tower: Tower, side: str, count: int) -> list[Any]:
    """Captions of the demo, as queries or documents; its drawings for a side of documents that reads images."""
    demo = load_dataset("demo")
    topics = list(islice(demo.topics(), count))
    if side == "query":
        return [tower.read_topic(topic) for topic in topics]
    try:
        return [tower.read(document) for document in islice(demo.documents(), count)]
    except OtherModality:
        return [tower.read(Document(topic.query_id, text=topic.text)) for topic in topics]


def measured(
    by_torch: Encoder, by_graph: Encoder, side: str, options: Options
) -> tuple[dict[str, Any], tuple[list[float], list[float]]]:
    """The row of one side, and the CPU seconds of the rounds of torch and of the graph."""
    towers = [as_lexical(getattr(model, side)) for model in (by_torch, by_graph)]
    inputs = inputs_of(towers[0], side, options.one_size(DOCUMENTS))
    vectors = [tower.weights(inputs, options.batch_size or 32) for tower in towers]
    seconds: list[list[float]] = [[], []]
    for _ in range(options.repeats or REPEATS):
        for tower, found in zip(towers, seconds, strict=True):
            started = time.process_time()
            tower.weights(inputs, options.batch_size or 32)
            found.append(time.process_time() - started)
    quantiser = Quantiser(document=SideQuantiser("fixed", 8, 255 / float(vectors[0].max())))
    impacts = [quantiser.documents(one)[0] for one in vectors]
    row = {
        "items": len(inputs),
        "torch_cpu_ms": round(float(np.median(seconds[0])) * 1000 / len(inputs), 2),
        "onnx_cpu_ms": round(float(np.median(seconds[1])) * 1000 / len(inputs), 2),
        "cells": impacts[0].nnz,
        "cells_changed": (impacts[0] != impacts[1]).nnz,
        "largest_difference": float(abs(vectors[0] - vectors[1]).max()),
    }
    return row, (seconds[0], seconds[1])
