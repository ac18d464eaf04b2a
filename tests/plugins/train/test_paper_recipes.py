"""The recipes of papers have the hyper-parameters that their papers print, or else the papers' published code.

A number that is not in the table is one that the paper leaves open; the comment of the recipe names the deviations.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.sides import SIDES
from lexvl_plugins.train.model_settings import ImageSettings, ModelSettings, TextPairSettings, TextSettings
from lexvl_plugins.train.recipe import Recipe, read_recipe

RECIPES = Path(__file__).parents[3] / "runs" / "recipes"

BERT = {"checkpoint": "bert-base-uncased"}
# STAIR, section 4.2: "modified CLIP-B/16".
TEXT_512 = {"max_length": 76, "width": 512, "layers": 12, "heads": 8}
VIT_B = {"resolution": 224, "patch_size": 16, "width": 768, "layers": 12, "heads": 12}
BERT_TOKENS = {**TEXT_512, "tokenizer": "bert-base-uncased"}
STAIR_MODEL = {"kind": "stair", "text": BERT_TOKENS, "image": VIT_B}


def plan(steps: int, batch: int, rate: float, warmup_steps: int, decay: str = "linear", **more: Any) -> dict[str, Any]:
    rates = {"learning_rate": rate, "warmup_steps": warmup_steps, "decay": decay}
    return {"steps": steps, "batch_size": batch, **rates, **more}


def flops(query: float, document: float) -> list[tuple[str, str, float]]:
    return [("flops", "query", query), ("flops", "document", document)]


# STAIR, section 4.2: "the same configuration as CLIP", a smaller rate in stage 3, lambda 1e-3.
LAMB = {"optimiser": "lamb", "weight_decay": 0.01}
STAIR_FLOPS = flops(1e-3, 1e-3)
# VDR, appendix A, and its repository: AdamW without decay, gradients of norm 2.
VDR_SIDES = {"query": {**BERT, "max_length": 256}, "document": {**BERT, "max_length": 256}, "padding": "max_length"}
ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "weight_decay": 0.0, "clip": 2.0}
VDR_TEXT: dict[str, Any] = {"negatives": 1, "last_learning_rate": 1e-7, **ADAMW}
# Joint's code: one rate for all, every parameter decays.
JOINT: dict[str, Any] = {"warmup": "n-1", "weight_decay": 0.05, "decayed": "all", "clip": 1.0, "betas": (0.9, 0.999)}
JOINT_COCO = plan(442_600, 256, 5e-5, 88_520, **JOINT)
# LexLIP's code: AdamW and the linear schedule of transformers, 10 % warm-up.
LEXLIP = {"warmup": "n-1", "weight_decay": 0.01, "decayed": "matrices", "betas": (0.9, 0.999), "clip": 1.0}
LEXLIP_FLOPS = flops(0.002, 0.002)

# FDT, section 4.1: 16,384 tokens of 512 dimensions; its code: CLIP's text tower, and T = 1000 throughout.
FDT_MODEL = {
    "kind": "fdt",
    "text": {"merges": "bpe_simple_vocab_16e6.txt.gz", "max_length": 77, "width": 512, "layers": 12, "heads": 8},
    "codebook": {"terms": 16_384, "width": 512, "attention": "sparsemax", "temperature": 1000.0, "decay": 1.0},
}
FDT_PLAN = plan(86_560, 1024, 1e-3, 2500, "cosine", weight_decay=0.1, betas=(0.9, 0.98), decayed="matrices")
FDT_STAGE = ("fdt", 0.0498, [], FDT_PLAN)
FDT_CLIP = {"kind": "dense-crossmodal", "text": FDT_MODEL["text"], "dimensions": 512}
SWIN_V2 = {"resolution": 224, "patch_size": 4, "width": 128}
SWIN_BLOCKS = {"depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32), "window": 7, "drop_path": 0.5}

# Recipe -> what its model is, and per stage its objective, temperature, regularisers, and optimisation.
PAPERS: dict[str, tuple[dict[str, Any], list[tuple[str, float, list[tuple[str, str, float]], dict[str, Any]]]]] = {
    # No training of the paper: BERT with the new head, before its first step.
    "bertlex-init": ({"kind": "vdr", "query": BERT}, [("vdr", 1.0, [], {"steps": 1})]),
    "clip-stair": (
        {"kind": "dense-crossmodal", "text": BERT_TOKENS, "image": VIT_B, "dimensions": 512},
        [("info_nce", 0.07, [], plan(600_000, 16_384, 1e-3, 10_000, **LAMB))],
    ),
    # D2S's code: L1 of 1e-3, halved; 200 epochs of 283 batches; a larger rate for the new layer than for the head.
    "d2s": (
        {"kind": "d2s", "words": "distilbert-base-uncased", "head": "words"},
        [
            (
                "d2s",
                0.07,  # not read: the teacher has a temperature of its own
                [("l1", "query", 5e-4), ("l1", "document", 5e-4)],
                plan(56_600, 512, 1e-3, 11_320, warmup="n-1", weight_decay=0.0, betas=(0.9, 0.999))
                | {"learning_rates": {"*.vocab_*": 5e-5}, "clip": 1e6},  # its code does not clip
            )
        ],
    ),
    # 80 epochs of 460 batches (VDR's repository, dpr_nq).
    "dpr": (
        {"kind": "dpr", "query": {**BERT, "max_length": 128}, "document": {**BERT, "max_length": 256}},
        [("dpr", 1.0, [], plan(36_800, 128, 2e-5, 460, **VDR_TEXT))],
    ),
    # VDR, table 1 and figure 1: DPR† with the numbers of VDR's text-to-text column.
    "dpr-msmarco": (
        {"kind": "dpr", "query": {**BERT, "max_length": 256}, "document": {**BERT, "max_length": 256}},
        [("dpr", 1.0, [], plan(31_311, 256, 2e-5, 1566, **VDR_TEXT))],
    ),
    # FDT's configuration of CC3M: 32 epochs of 2,705 batches; scale from e^3 = 20.1.
    "fdt": ({**FDT_MODEL, "image": {**VIT_B, "patch_size": 32}}, [FDT_STAGE]),
    # Its CLIP: the same networks and the same run, without the codebook.
    "fdt-clip": ({**FDT_CLIP, "image": {**VIT_B, "patch_size": 32}}, [("info_nce", *FDT_STAGE[1:])]),
    "fdt-clip-swin": ({**FDT_CLIP, "image": {**SWIN_V2, **SWIN_BLOCKS}}, [("info_nce", *FDT_STAGE[1:])]),
    # FDT's swinv2_base_patch4_window7_224.
    "fdt-swin": ({**FDT_MODEL, "image": {**SWIN_V2, **SWIN_BLOCKS}}, [FDT_STAGE]),
    # Joint's configuration blip-flickr: L1 of 1e-4 and 2e-5, halved; every parameter decays.
    "joint": (
        {"kind": "joint", "words": "blip_flickr_retrieval.pth", "head": "words"},
        [("joint", 0.07, [("l1", "query", 5e-5), ("l1", "document", 1e-5)], plan(113_200, 256, 1e-5, 22_640, **JOINT))],
    ),
    # Its configuration albef-coco: L1 of 1e-5 and 3e-5, halved; 200 epochs of 2,213 batches.
    "joint-albef": (
        {"kind": "joint", "words": "albef_coco_retrieval_lavis.pt", "head": "words"},
        [("joint", 0.07, [("l1", "query", 5e-6), ("l1", "document", 1.5e-5)], JOINT_COCO)],
    ),
    "lexlip": (
        {"kind": "lexlip", "text": {**BERT, "max_length": 40, "terms": "tokens"}},
        [
            ("lexlip", 0.05, LEXLIP_FLOPS, plan(107_500, 800, 5e-5, 10_750, **LEXLIP)),
            ("lexlip_momentum", 0.05, LEXLIP_FLOPS, plan(40_000, 2880, 5e-5, 4000, **LEXLIP)),
            ("lexlip", 0.05, LEXLIP_FLOPS, plan(944, 1536, 5e-5, 94, **LEXLIP)),
        ],
    ),
    "lexlip-384": (
        {"kind": "lexlip", "text": {**BERT, "max_length": 40, "terms": "tokens"}, "image": {"resolution": 384}},
        [("lexlip", 0.05, LEXLIP_FLOPS, plan(944, 1536, 5e-5, 94, **LEXLIP))],
    ),
    # naver/splade: FLOPS of documents is the mean of those of positives and negatives.
    "splade": (
        {"kind": "splade", "query": {"checkpoint": "distilbert-base-uncased", "max_length": 256}},
        [
            (
                "splade_in_batch",
                1.0,
                [("flops", "query", 3e-4), ("flops", "positives", 5e-5), ("flops", "negatives", 5e-5)],
                plan(150_000, 128, 2e-5, 6000, warmup="n-1", weight_decay=0.01, decayed="matrices", negatives=1),
            )
        ],
    ),
    "stair": (
        STAIR_MODEL,
        [
            ("stair", 0.07, STAIR_FLOPS, plan(300_000, 16_384, 1e-3, 10_000, **LAMB)),
            ("stair", 0.07, STAIR_FLOPS, plan(300_000, 16_384, 1e-3, 10_000, **LAMB)),
            ("stair", 0.07, STAIR_FLOPS, plan(600_000, 16_384, 1e-4, 10_000, **LAMB)),
        ],
    ),
    "stair-single": (STAIR_MODEL, [("stair", 0.07, STAIR_FLOPS, plan(600_000, 16_384, 1e-3, 10_000, **LAMB))]),
    "svdr-text": ({"kind": "svdr", **VDR_SIDES}, [("svdr", 1.0, [], plan(31_311, 256, 2e-5, 1566, **VDR_TEXT))]),
    # V-SPLADE's code; the paper prints neither steps nor rate.
    "v-splade": (STAIR_MODEL, [("v_splade", 1.0, [("flops", "positives", 0.01)], {})]),
    # VDR, table 1, cross-modal: 20 epochs of 3,662 batches of YFCC15M, the first of them warm-up.
    "vdr-crossmodal": (
        {"kind": "vdr-crossmodal", "topk": 512}
        | {"text": {**BERT, "max_length": 77, "terms": "tokens"}, "image": {**VIT_B, "patch_size": 32}},
        [("vdr", 0.07, [], plan(73_242, 4096, 2e-4, 3662, "cosine"))],
    ),
    # VDR, table 1, text-to-text: 20 epochs of 1,566 batches of MS MARCO's 400,782 questions.
    "vdr-text": ({"kind": "vdr", **VDR_SIDES}, [("vdr", 1.0, [], plan(31_311, 256, 2e-5, 1566, **VDR_TEXT))]),
}


def contained(expected: Any, value: Any, path: str = "") -> Iterator[str]:
    """Where the expected values are not those of a record."""
    if isinstance(expected, dict):
        for key, part in expected.items():
            other = value.get(key) if isinstance(value, dict) else getattr(value, key)
            yield from contained(part, other, f"{path}.{key}")
    elif expected != value:
        yield f"{path}: {value}, expected {expected}"


def recipe_of(name: str) -> Recipe:
    return read_recipe(RECIPES / f"{name}-paper.yaml")


def test_every_recipe_of_a_paper_is_here() -> None:
    assert {path.stem.removesuffix("-paper") for path in RECIPES.glob("*-paper.yaml")} == PAPERS.keys()


@pytest.mark.parametrize("name", PAPERS)
def test_hyper_parameters_are_the_papers(name: str) -> None:
    recipe, (model, stages) = recipe_of(name), PAPERS[name]
    assert [*contained(model, recipe.model)] == []
    assert len(recipe.stages) == len(stages)
    for stage, (objective, temperature, regularisers, optimisation) in zip(recipe.stages, stages, strict=True):
        assert (stage.objective.name, stage.objective.temperature) == (objective, temperature)
        assert [(part.name, part.side, part.weight) for part in stage.regularisers] == regularisers
        assert [*contained(optimisation, stage.optimisation)] == []


def test_options_of_texts_and_heads() -> None:
    """VDR's repository trains DPR in both directions; D2S controls expansion, and Joint's published runs do not."""
    recipes = {name: recipe_of(name) for name in ("dpr", "dpr-msmarco", "vdr-text", "svdr-text")}
    assert [recipes[name].stages[0].objective.options for name in ("dpr", "dpr-msmarco")] == [{"symmetric": True}] * 2
    # The repository's option train_insert_title.
    assert [name for name, recipe in recipes.items() if recipe.data.titles] == ["dpr"]
    # Table 1: terms that the loss keeps, 512 of images and their texts, 768 of texts.
    text = recipes["vdr-text"]
    assert recipe_of("vdr-crossmodal").stages[0].objective.options["topk"] == 512
    assert isinstance(text.model, TextPairSettings) and text.model.kept_of_texts == 768
    assert "topk" not in text.stages[0].objective.options


@pytest.mark.parametrize(
    ("name", "corpus", "expansion", "options", "learns"),
    [
        ("d2s", "lsr42/flickr30k-blip-dense", "controlled", {"teacher_temperature": 0.001}, False),
        ("joint", "flickr30k-blip-dense,before_proj_blip", "always", {"mix": "blip-flickr"}, True),
        ("joint-albef", "mscoco-albef-dense,before_proj_albef", "always", {"mix": "albef-coco"}, True),
    ],
)
def test_options_of_heads(name: str, corpus: str, expansion: str, options: dict[str, Any], learns: bool) -> None:
    """The weight of L1 grows with the square of the steps before, over the warm-up."""
    recipe, [stage] = recipe_of(name), recipe_of(name).stages
    assert recipe.data.corpora == (f"embeddings:{corpus}",) and stage.expansion == expansion
    assert (stage.objective.options, stage.objective.learn_temperature) == (options, learns)
    ramps = {(part.ramp, part.ramp_steps) for part in stage.regularisers}
    assert ramps == {("n-1", stage.optimisation.warmup_steps)}


def test_stages_of_stair_and_lexlip() -> None:
    stages = recipe_of("stair").stages
    assert [stage.objective.options.get("masked", False) for stage in stages] == [True, False, False]
    assert [bool(stage.trained) for stage in stages] == [False, True, False]
    sizes = {"width": 8, "layers": 1, "heads": 2}
    model = ModelSettings(kind="stair", text=TextSettings(**sizes), image=ImageSettings(**sizes))
    columns = TokenColumns(Vocabulary("abcdefghi"), np.arange(9))
    pair = TowerPair(*SIDES["stair"](model, columns, None), temperature=0.07)
    pair.start(stages[1])
    frozen = {name for name, weights in pair.named_parameters() if not weights.requires_grad}
    assert {name for name in frozen if name.startswith("encoder_q")} == {"encoder_q.network.token_embedding.weight"}
    stages = recipe_of("lexlip").stages
    assert [[part.name for part in stage.auxiliaries] for stage in stages] == [["masked_words"], [], []]
    assert (stages[1].momentum.queue, stages[1].momentum.decay) == (11_520, 0.99)
    # RandAugment(2, 9) throughout, and in phase 2 every second batch at half the side (its code's vit_randaug and DR).
    augmentations = [stage.augmentation for stage in (*stages, *recipe_of("lexlip-384").stages)]
    assert [augmentation.half for augmentation in augmentations] == [0, 0.5, 0, 0]
    assert {(a.rand_augment and (a.rand_augment.operations, a.rand_augment.magnitude)) for a in augmentations} == {
        (2, 9)
    }
    # The weight of FLOPS is constant: whole in the first step.
    assert {(part.ramp, part.ramp_steps) for stage in stages for part in stage.regularisers} == {("n", 1)}
