"""Cards: what a user wants to know of a registered encoder before loading it.

A card holds only what no code says. Equation, options, their types, defaults and meaning are read from the encoder's
own module when `describe` is asked for them. This module itself loads no model library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from lexvl_anserini.errors import UnknownName
from lexvl_anserini.registry import ENCODERS, resolve

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Card:
    """One encoder.

    paper        authors, venue and arXiv number; what it is where there is no paper
    modalities   what its sides read: "text", "image"
    checkpoints  published ones that it loads: hub ids, or file names where no hub has them
    licence      of the published weights; "unknown" where their authors state none
    """

    paper: str
    modalities: tuple[str, ...] = ("text",)
    checkpoints: tuple[str, ...] = ()
    licence: str = UNKNOWN


class Option(NamedTuple):
    """One option of an encoder, as `--set KEY=VALUE` takes it: its type and default as text, and what it does."""

    name: str
    type: str
    default: str
    meaning: str


# By name, as in `registry.ENCODERS`.
CARDS: Mapping[str, Card] = {
    "albef": Card(
        "Li et al., ALBEF, NeurIPS 2021 (arXiv 2107.07651)",
        ("text", "image"),
        ("albef_coco_retrieval_lavis.pt", "albef_flickr_retrieval_lavis.pt", "ALBEF.pth"),
        "BSD-3-Clause (LAVIS)",
    ),
    "bag-of-tokens": Card("no model: a text's own tokens", licence="none"),
    "bertlex": Card("Zhou et al., VDR, ICLR 2024, appendix C (arXiv 2212.07699)", checkpoints=("bert-base-uncased",)),
    "blip": Card(
        "Li et al., BLIP, ICML 2022 (arXiv 2201.12086)",
        ("text", "image"),
        (
            "Salesforce/blip-itm-base-coco",
            "Salesforce/blip-itm-base-flickr",
            "Salesforce/blip-itm-large-coco",
            "Salesforce/blip-itm-large-flickr",
            "blip_coco_retrieval.pth",
            "blip_flickr_retrieval.pth",
        ),
        "BSD-3-Clause",
    ),
    "bm25": Card("Robertson and Zaragoza 2009, as in Anserini", licence="none"),
    "clip": Card(
        "Radford et al., CLIP, ICML 2021 (arXiv 2103.00020)",
        ("text", "image"),
        (
            "openai/clip-vit-base-patch32",
            "openai/clip-vit-base-patch16",
            "openai/clip-vit-large-patch14",
            "openai/clip-vit-large-patch14-336",
        ),
    ),
    "d2s": Card(
        "Nguyen et al., D2S, ECIR 2024 (arXiv 2402.17535)",
        ("text", "image"),
        ("lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001",),
    ),
    "dense-crossmodal": Card(
        "none: the dense twin of vdr-crossmodal, trained beside it", ("text", "image"), ("demo-dense",), "Apache-2.0"
    ),
    "dpr": Card(
        "Karpukhin et al., DPR, EMNLP 2020 (arXiv 2004.04906)",
        checkpoints=(
            "facebook/dpr-ctx_encoder-single-nq-base",
            "facebook/dpr-question_encoder-single-nq-base",
            "facebook/dpr-ctx_encoder-multiset-base",
            "facebook/dpr-question_encoder-multiset-base",
        ),
    ),
    "fdt": Card("Chen et al., FDT, CVPR 2023 (arXiv 2303.14865)", ("text", "image"), ("ckpt_<iteration>.pth.tar",)),
    "joint": Card(
        "Joint sparse-dense optimisation, CIKM 2025 (arXiv 2508.16707)", ("text", "image"), ("checkpoint_best.ckpt",)
    ),
    "lexlip": Card("Luo et al., LexLIP, ICCV 2023 (arXiv 2302.02908)", ("text", "image")),
    "sentence": Card(
        "Reimers and Gurevych, EMNLP 2019 (arXiv 1908.10084)",
        checkpoints=("minilm", "sentence-transformers/all-MiniLM-L6-v2"),
    ),
    "splade": Card(
        "Formal et al., SIGIR 2021 and 2022 (arXiv 2107.05720, 2109.10086, 2205.04733)",
        checkpoints=(
            "naver/splade-v3",
            "naver/splade-v3-distilbert",
            "naver/splade-v3-lexical",
            "naver/splade-v3-doc",
            "naver/splade-cocondenser-ensembledistil",
            "naver/splade-cocondenser-selfdistil",
            "naver/splade_v2_max",
            "naver/splade_v2_distil",
            "naver/efficient-splade-V-large-doc",
            "naver/efficient-splade-V-large-query",
            "naver/efficient-splade-VI-BT-large-doc",
            "naver/efficient-splade-VI-BT-large-query",
        ),
        licence="CC BY-NC-SA 4.0",
    ),
    "stair": Card("Chen et al., STAIR, EMNLP 2023 (arXiv 2301.13081)", ("text", "image")),
    "svdr": Card(
        "Zhou et al., SVDR/SiDR, ICLR 2025 (arXiv 2405.01924)",
        checkpoints=("vsearch/svdr-msmarco", "vsearch/svdr-nq", "vsearch/svdr-hlp"),
    ),
    "vdr": Card(
        "Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)",
        checkpoints=(
            "vsearch/svdr-msmarco",
            "vsearch/vdr-nq",
            "vsearch/svdr-nq",
            "vsearch/svdr-hlp",
            "vsearch/vdr-msmarco",
            "jzhoubu/vdr-msmarco",
            "jzhoubu/vdr-hlp",
            "minilm",
        ),
    ),
    "vdr-crossmodal": Card(
        "Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)",
        ("text", "image"),
        ("vsearch/vdr-cross-modal", "demo-vdr"),
        "Apache-2.0 (demo-vdr); unknown of the hub's",
    ),
}

# What `encode` is told besides the encoder, where that is not a corpus of its modalities and its first checkpoint:
# where a packaged checkpoint serves, the example needs no hub. Names in capitals are the reader's own.
EXAMPLES: Mapping[str, str] = {
    "bertlex": "--corpus demo --checkpoint minilm",
    "d2s": "--corpus embeddings:lsr42/mscoco-blip-dense "
    "--checkpoint lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001",
    "dense-crossmodal": "--corpus demo",
    "dpr": "--corpus demo --checkpoint facebook/dpr-ctx_encoder-single-nq-base "
    "--set query_checkpoint=facebook/dpr-question_encoder-single-nq-base",
    "fdt": "--corpus coco --checkpoint RUN-FOLDER",
    "joint": "--corpus embeddings:FOLDER,before_proj_blip --checkpoint checkpoint_best.ckpt",
    "lexlip": "--corpus coco --checkpoint FOLDER",
    "stair": "--corpus coco --checkpoint FOLDER",
    "svdr": "--corpus demo --checkpoint minilm",
    "vdr": "--corpus demo --checkpoint minilm",
    "vdr-crossmodal": "--corpus demo",
}


def card_of(name: str) -> Card:
    """The card of a registered encoder; one that says "unknown" where nobody has written it yet.

    Raises:
        UnknownName: no such encoder.
    """
    if name not in ENCODERS:
        raise UnknownName("encoder", name, ENCODERS)
    return CARDS.get(name) or Card(UNKNOWN)


def equation_of(name: str) -> str:
    """The first line of the docstring of an encoder's module: what it computes, in one line."""
    return first_line(import_module(ENCODERS[name].partition(":")[0]).__doc__)


def first_line(docstring: str | None) -> str:
    """The first line of a docstring."""
    return (docstring or "").strip().partition("\n")[0]


def options_of(name: str) -> list[Option]:
    """The options of an encoder's loader, in the order of its signature."""
    load = resolve("encoder", name, ENCODERS)
    meanings = argument_meanings(load)
    return [
        Option(
            parameter.name, type_name(parameter.annotation), shown(parameter.default), meanings.get(parameter.name, "")
        )
        for parameter in inspect.signature(load, eval_str=True).parameters.values()
        if parameter.name != "source"
    ]


def shown(default: Any) -> str:
    """A default as text; None is the checkpoint's own, or what the meaning says."""
    return "-" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def type_name(annotation: Any) -> str:
    """An annotation as a user reads it: `Literal["max", "sum"] | None` is `max|sum`."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, parts))
    if get_origin(annotation) in (Union, UnionType):
        return "|".join(type_name(part) for part in parts if part is not type(None))
    return getattr(annotation, "__name__", str(annotation))


def argument_meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The `Args:` section of a docstring: name -> text on one line."""
    text = inspect.getdoc(function) or ""
    _, found, section = text.partition("Args:\n")
    if not found:
        return {}
    section = re.split(r"\n(?=\S)", section, maxsplit=1)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def example_of(name: str) -> str:
    """A command that encodes with it."""
    card = card_of(name)
    corpus = "coco" if "image" in card.modalities else "demo"
    checkpoint = f" --checkpoint {card.checkpoints[0]}" if card.checkpoints else ""
    rest = EXAMPLES.get(name, f"--corpus {corpus}{checkpoint}")
    return f"python -m lexvl_anserini.encode --encoder {name} {rest}"


def listing() -> list[dict[str, Any]]:
    """One row per registered encoder: name, paper, modalities, checkpoints, licence."""
    return [{"name": name, **asdict(card_of(name))} for name in ENCODERS]


def describe(name: str) -> dict[str, Any]:
    """All that is known of an encoder: its card, equation, options and an example.

    Raises:
        UnknownName: no such encoder.
    """
    card = card_of(name)
    about = inspect.getdoc(import_module(ENCODERS[name].partition(":")[0])) or ""
    return {
        "name": name,
        "equation": equation_of(name),
        "about": about.partition("\n")[2].strip(),
        **asdict(card),
        "options": [option._asdict() for option in options_of(name)],
        "example": example_of(name),
    }
