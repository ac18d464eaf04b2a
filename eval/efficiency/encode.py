"""The suite encode: our encoding against sentence-transformers and the plain formula, on models of real size.

The models are BERT-base and ViT-B/32 in shape and random in their weights, which costs the same as trained ones. Times
come from one process in which the systems take turns; peaks of memory come from one process per system.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import LexvlError, UnknownName

from .collection import working_folder
from .processes import Stopwatch, reset_peak, resident_bytes, run_once
from .suite import Options, Ratio, Report, mib, ratio, spread

DOCUMENTS = 64
REPEATS = 3
TOKENS = 128
BATCH_SIZE = 32
IMAGE_BATCH_SIZE = 64

# By shape: the module of its models, and the systems.
SHAPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "splade": (".text_models", ("ours", "sentence-transformers", "naive")),
    "vdr": (".text_models", ("ours", "naive")),
    "image": (".image_models", ("ours", "naive")),
}

# Systems must return the same vectors, up to this difference.
TOLERANCE = 1e-4

# Number of inputs whose vectors are compared between the systems.
COMPARED = 8

# The synthetic models use the tokenizer of this encoder (BERT's uncased vocabulary).
TOKENIZER = "minilm"


class Encoding(NamedTuple):
    """A loaded system: `vectors` is timed, `dense` is compared (before VDR's top k, whose ties rounding decides)."""

    vectors: Callable[[Sequence[str], int], Any]
    dense: Callable[[Sequence[str]], np.ndarray]


class Compared(NamedTuple):
    """Costs per system and round, the difference of each system's vectors from ours, and their dimensions."""

    costs: dict[str, list[dict[str, float]]]
    differences: dict[str, float]
    dimensions: int


# --- the suite ------------------------------------------------------------------------------------------------------


def measure(options: Options) -> Report:
    """Documents per second, extra memory above the loaded model, by shape, case and system.

    Raises:
        UnknownName: no such shape or system.
        LexvlError: two systems return different vectors.
    """
    reports = []
    for shape in options.shape or tuple(SHAPES):
        if shape not in SHAPES:
            raise UnknownName("shape", shape, SHAPES)
        with working_folder(options) as folder:
            reports += shape_reports(options, shape, folder)
    settings = {
        "documents": options.one_size(DOCUMENTS),
        "threads": options.threads or 1,
        "repeats": options.repeats or REPEATS,
    }
    return Report(
        figures={name: value for report in reports for name, value in report.figures.items()},
        rows=tuple(row for report in reports for row in report.rows),
        ratios=tuple(ratio for report in reports for ratio in report.ratios),
        settings=settings,
    )


def shape_reports(options: Options, shape: str, folder: Path) -> list[Report]:
    """One report per case of a shape.

    Raises:
        UnknownName: no such system.
        LexvlError: two systems return different vectors.
    """
    module, known = SHAPES[shape]
    names = chosen(shape, options.system, known)
    made = run_once(
        f"{module}:make",
        folder=str(folder / f"model-{shape}"),
        shape=shape,
        documents=options.one_size(DOCUMENTS),
        tokens=TOKENS,
        corpus=options.corpus,
        data_dir=options.data_dir,
        seed=options.seed or 0,
    ).result
    reports = []
    for case, inputs in made["cases"].items():
        common = {
            "shape": shape,
            "folder": made["folder"],
            "inputs": inputs,
            "batch_size": options.batch_size or (IMAGE_BATCH_SIZE if shape == "image" else BATCH_SIZE),
            "threads": options.threads or 1,
        }
        found = run_once(f"{module}:compare", systems=names, repeats=options.repeats or REPEATS, **common).result
        expect_same(f"{shape}, {case}", found["differences"])
        peaks = {name: run_once(f"{module}:peak", system=name, **common).result for name in names}
        reports.append(
            Report(
                figures={f"{shape}_{case}_{key}": value for key, value in found["figures"].items()},
                rows=tuple(case_rows(shape, case, len(inputs), found["costs"], peaks)),
                ratios=tuple(case_ratios(f"{shape}, {case}", found["costs"], peaks)),
            )
        )
    return reports


def chosen(shape: str, systems: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The requested systems, of those that encode the shape.

    Raises:
        UnknownName: no such system for this shape.
    """
    for name in systems or ():
        if name not in known:
            raise UnknownName(f"system for shape {shape!r}", name, known)
    return [name for name in known if not systems or name in systems]


def expect_same(where: str, differences: Mapping[str, float]) -> None:
    """Raises LexvlError if a system's vectors differ from ours."""
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise LexvlError(f"{where}: vectors of {name} and ours differ by {difference:.3g}, more than {TOLERANCE}")


def case_rows(
    shape: str,
    case: str,
    count: int,
    costs: Mapping[str, list[dict[str, float]]],
    peaks: Mapping[str, Mapping[str, int]],
) -> list[dict[str, Any]]:
    """One line per system."""
    rows = []
    for name, rounds in costs.items():
        wall_s, cpu_s = (spread([cost[key] for cost in rounds]).median for key in ("wall_s", "cpu_s"))
        rows.append(
            {
                "shape": shape,
                "case": case,
                "system": name,
                "documents_per_s": round(count / wall_s, 2),
                "wall_s": round(wall_s, 2),
                "cpu_s": round(cpu_s, 2),
                "model_mib": mib(peaks[name]["before"]),
                "extra_mib": mib(peaks[name]["extra"]),
            }
        )
    return rows


def case_ratios(
    where: str, costs: Mapping[str, list[dict[str, float]]], peaks: Mapping[str, Mapping[str, int]]
) -> list[Ratio]:
    """Every other system over ours."""
    if "ours" not in costs:
        return []
    ratios = []
    for name in [name for name in costs if name != "ours"]:
        for what, key in (("wall", "wall_s"), ("CPU", "cpu_s")):
            sides = [[cost[key] for cost in costs[side]] for side in (name, "ours")]
            ratios.append(ratio(f"{where}: {name} / ours: {what} seconds", *sides))
        memory = [[peaks[side]["extra"]] for side in (name, "ours")]
        ratios.append(ratio(f"{where}: {name} / ours: memory above the model", *memory))
    return ratios


# --- what its children share ----------------------------------------------------------------------------------------


def model_folder(folder: str) -> Path:
    """The folder of a synthetic model, created if it does not exist."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path


def copy_tokenizer(folder: Path) -> Any:
    """Copies the tokenizer of `TOKENIZER` into a model's folder and loads it."""
    from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
    from lexvl_anserini.encoders.parts.texts.tokens import load_tokenizer

    source = find_checkpoint(TOKENIZER, weights=False).folder
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return load_tokenizer(folder)


def alternate(loaded: Mapping[str, Encoding], inputs: Sequence[str], batch_size: int, repeats: int) -> Compared:
    """Encodes the same inputs with all systems in turns."""
    dense = {name: system.dense(inputs[:COMPARED]) for name, system in loaded.items()}
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in loaded}
    for _ in range(repeats):
        for name, system in loaded.items():
            with Stopwatch() as watch:
                system.vectors(inputs, batch_size)
            costs[name].append(watch.seconds())
    reference = dense.get("ours", next(iter(dense.values())))
    differences = {name: float(np.abs(vectors - reference).max()) for name, vectors in dense.items()}
    return Compared(costs, differences, int(reference.shape[1]))


def memory(system: Encoding, inputs: Sequence[str], batch_size: int) -> dict[str, int]:
    """Resident bytes of the loaded system, and the additional bytes while it encodes."""
    # Memory that the first call allocates permanently does not count.
    system.vectors(inputs[:1], batch_size)
    before = resident_bytes("VmRSS")
    reset_peak()
    system.vectors(inputs, batch_size)
    return {"before": before, "extra": resident_bytes() - before}
