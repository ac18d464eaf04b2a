"""What FDT costs beside CLIP over the same networks, in CPU time on one thread (FDT, section 4.3: 13 % and 12 %).

CLIP's side of a pair is the projection of its network; FDT's reads the network's states by its codebook. A step is the
forward pass of a batch of pairs, InfoNCE over it and all gradients, without the optimiser, whose time does not grow
with the batch. Throughput is that of the features of both sides without gradients. Both take turns in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from lexvl_anserini.ground.errors import UnknownName
from lexvl_plugins.bench.command import Options, Ratio, Report, ratio
from lexvl_plugins.bench.processes import Stopwatch, run_once, take_turns
from lexvl_plugins.train.reproduction import BPE_TOKENS, FDT_CASES, build_fdt_networks

SMALL = {
    **{f"model.text.{name}": value for name, value in (("width", 128), ("layers", 2), ("heads", 2))},
    **{f"model.image.{name}": value for name, value in (("width", 128), ("layers", 2), ("heads", 2))},
    "model.image.resolution": 64,
    "model.image.patch_size": 16,
    "model.codebook.terms": 1024,
    "model.codebook.width": 64,
}
# What --system names: the image encoders of the paper's table 6, and networks that are tried in seconds.
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {"small": ("fdt", SMALL), **FDT_CASES}

# Pairs of a batch, and rounds of turns.
PAIRS, ROUNDS = 2, 3

STEP, THROUGHPUT = "CPU time of a step", "pairs encoded per CPU second"
# What the paper prints: which ratio less 1, or 1 less the ratio.
SHARES = {"additional training time": (STEP, 1), "lost throughput": (THROUGHPUT, -1)}


def measure(options: Options) -> Report:
    """The CPU seconds of both models, and FDT's over CLIP's, for each of the networks."""
    pairs, rounds, names = options.single("documents", PAIRS), options.repeats or ROUNDS, options.system or ["small"]
    if unknown := [name for name in names if name not in CASES]:
        raise UnknownName("system", unknown[0], CASES)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    for name in names:
        child = run_once(f"{__name__}:time_networks", {"OMP_NUM_THREADS": "1"}, name=name, pairs=pairs, rounds=rounds)
        seconds = child.result
        for model in ("CLIP", "FDT"):
            times = {f"{what}_cpu_s": round(median(seconds[f"{what} {model}"]), 4) for what in ("step", "encode")}
            rows.append({"networks": name, "model": model, **times})
        step, encode = ([seconds[f"{what} {model}"] for model in ("FDT", "CLIP")] for what in ("step", "encode"))
        ratios.append(ratio(f"FDT / CLIP: {STEP}, {name}", *step))
        ratios.append(ratio(f"FDT / CLIP: {THROUGHPUT}, {name}", *reversed(encode)))  # more seconds, fewer pairs
    return Report(settings={"pairs": pairs, "rounds": rounds}, rows=tuple(rows), ratios=tuple(ratios))


def time_networks(name: str, pairs: int, rounds: int) -> dict[str, list[float]]:
    """The CPU seconds of each turn of a step and of encoding, by both models; runs in a child of one thread."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    works = make_works(name, pairs)

    def time_work(work: Callable[[], object]) -> float:
        with Stopwatch() as watch:
            work()
        return watch.cpu_s

    return take_turns({key: partial(time_work, work) for key, work in works.items()}, rounds, warm_up=1)


def make_works(name: str, pairs: int) -> dict[str, Callable[[], object]]:
    """What is timed of some networks: a step and the encoding of a batch of drawn pairs, by CLIP and by FDT."""
    import torch

    from lexvl_plugins.train.common.tower_pair import ImageBatch, TextBatch
    from lexvl_plugins.train.objectives.contrastive import Encoded, compute_features, fdt, info_nce

    built = build_fdt_networks(*CASES[name])
    text, image = built.model.text, built.model.image
    ids = torch.randint(1, BPE_TOKENS - 3, (pairs, text.max_length))
    ids[:, -1] = BPE_TOKENS - 1  # the end of a text has the highest id
    texts = TextBatch(ids, torch.ones_like(ids), torch.zeros(pairs, 0, dtype=torch.bool))
    images = ImageBatch(torch.randn(pairs, 3, image.resolution, image.resolution))
    modules = torch.nn.ModuleList([*built.clip_sides, *built.sides])
    query, document = built.sides

    def encode_clip() -> Encoded:
        clip_query, clip_document = built.clip_sides
        return Encoded(clip_query(texts), clip_document(images))

    def encode_fdt() -> Encoded:
        return Encoded(query(texts), document(images), codebook=document.codebook.rows)

    def compute_fdt() -> object:
        encoded = encode_fdt()
        return [compute_features(side, document.codebook.rows) for side in encoded[:2]]

    def take_step(encode: Callable[[], Encoded], objective: Callable[[Encoded], torch.Tensor]) -> None:
        modules.train()
        objective(encode()).backward()
        modules.zero_grad(set_to_none=True)

    def run_without_gradients(compute: Callable[[], object]) -> None:
        modules.eval()
        with torch.inference_mode():
            compute()

    return {
        "step CLIP": partial(take_step, encode_clip, info_nce),
        "step FDT": partial(take_step, encode_fdt, fdt),
        "encode CLIP": partial(run_without_gradients, encode_clip),
        "encode FDT": partial(run_without_gradients, compute_fdt),
    }
