"""Encoding: ours against sentence-transformers and against the plain formula on full logits, on models of real size.

The models are BERT-base and ViT-B/32 in shape and random in their weights, which costs the same as trained ones.
Times are taken in one process in which the systems take turns; peaks of memory each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.efficiency.collection import working_folder
from eval.efficiency.options import Options
from eval.efficiency.processes import run_once
from eval.efficiency.report import Ratio, Report, mib, ratio, spread
from lexvl_anserini.errors import LexvlError, UnknownName

DOCUMENTS = 64
REPEATS = 3
TOKENS = 128
BATCH_SIZE = 32
IMAGE_BATCH_SIZE = 64

# By shape: where its functions are, and what is compared on it.
SHAPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "splade": ("eval.efficiency.encode_texts", ("ours", "sentence-transformers", "naive")),
    "vdr": ("eval.efficiency.encode_texts", ("ours", "naive")),
    "image": ("eval.efficiency.encode_images", ("ours", "naive")),
}

# Systems must give the same vectors, up to this.
TOLERANCE = 1e-4


def measure(options: Options) -> Report:
    """Documents per second, extra memory above the loaded model, by shape, case and system.

    Raises:
        UnknownName: no such shape or system.
        LexvlError: two systems give different vectors.
    """
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    figures: dict[str, Any] = {}
    documents = options.one_size(DOCUMENTS)
    for shape in options.shape or tuple(SHAPES):
        if shape not in SHAPES:
            raise UnknownName("shape", shape, SHAPES)
        module, known = SHAPES[shape]
        names = chosen(shape, options.system, known)
        with working_folder(options) as folder:
            made = run_once(
                f"{module}:make", folder=str(folder / f"model-{shape}"), shape=shape, documents=documents,
                tokens=TOKENS, corpus=options.corpus, data_dir=options.data_dir, seed=options.seed or 0,
            ).result  # fmt: skip
            for case, inputs in made["cases"].items():
                common = {
                    "shape": shape,
                    "folder": made["folder"],
                    "inputs": inputs,
                    "batch_size": options.batch_size or (IMAGE_BATCH_SIZE if shape == "image" else BATCH_SIZE),
                    "threads": options.threads or 1,
                }
                found = run_once(
                    f"{module}:compare", systems=names, repeats=options.repeats or REPEATS, **common
                ).result
                expect_same(f"{shape}, {case}", found["differences"])
                peaks = {name: run_once(f"{module}:peak", system=name, **common).result for name in names}
                rows.extend(case_rows(shape, case, len(inputs), found["costs"], peaks))
                ratios.extend(case_ratios(f"{shape}, {case}", found["costs"], peaks))
                figures.update({f"{shape}_{case}_{key}": value for key, value in found["figures"].items()})
    settings = {"documents": documents, "threads": options.threads or 1, "repeats": options.repeats or REPEATS}
    return Report(figures=figures, rows=tuple(rows), ratios=tuple(ratios), settings=settings)


def chosen(shape: str, systems: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The systems asked for, of those that know the shape.

    Raises:
        UnknownName: no such system for this shape.
    """
    for name in systems or ():
        if name not in known:
            raise UnknownName(f"system for shape {shape!r}", name, known)
    return [name for name in known if not systems or name in systems]


def expect_same(where: str, differences: Mapping[str, float]) -> None:
    """Raises LexvlError if a system's vectors are others than ours."""
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


def work_folder(folder: str) -> Path:
    """The folder of a made-up model, made if it is not there."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path
