"""Tiny models of every encoder of the core, for the contracts that hold of all encoders.

A new encoder joins by one line: its name, a checkpoint (a path below tests/golden, or `shared/...` beside the checkout,
or a function that makes one), and options. `tests/encoders/test_contracts.py` fails for an encoder without a line.

A module of tests has the contracts if it has `pytest_generate_tests` and a table `TINY_ENCODERS`: those of a plug-in
import the tests, and have a table of their own (tests/plugins/pages/test_v_splade_contracts.py).
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.describing import list_options

BERT, DISTILBERT, PUBLISHED = "splade/ckpt_bert", "splade/ckpt_distilbert", "vdr/text-tiny"
SPARSE = "sentence_transformers_sparse/"
WORDPIECES, CLIP_TINY = "common/tokenizer_bert_tiny", "shared/golden/common/tokenizer_clip_tiny"
CROSSMODAL = "shared/golden/vdr/crossmodal-tiny"
BLIP, ALBEF = "shared/golden/blip/lavis_checkpoint.pth", "shared/golden/albef/lavis_checkpoint.pt"


@dataclass(frozen=True, eq=False)
class Tiny:
    """One composition of an encoder.

    Attributes:
        encoder: its name.
        checkpoint: a path, or a function of (tests' golden folder, an empty folder) that writes one and returns its
            path.
        options: of the loader; values that begin with `path:` are paths as above.
        vectors: the width of the vectors that it reads instead of texts and pictures, if it does.
    """

    encoder: str
    checkpoint: str | Callable[[Path, Path], Path] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    vectors: int | None = None

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """The mark of what reads from beside the checkout."""
        places = (self.checkpoint, *self.options.values())
        reads = any(isinstance(place, str) and place.removeprefix("path:").startswith("shared/") for place in places)
        return [pytest.mark.shared] if reads else []

    @property
    def has_weights(self) -> bool:
        """Whether it has a checkpoint of its own kind."""
        return self.checkpoint is not None and self.encoder != "bag-of-tokens"

    @property
    def directions(self) -> str:
        """The directions that its loader knows, as `a|b`; none for encoders of stored vectors."""
        types = {option.name: option.type for option in list_options(self.encoder)}
        return "" if self.vectors or "mode" in self.options else types.get("direction", "")

    @property
    def reads_images(self) -> bool:
        """Whether a side reads pictures."""
        return "image" in CARDS[self.encoder].modalities and not self.vectors


def made_dense(golden: Path, folder: Path) -> Path:
    """A dense sentence-transformers folder: the tiny BERT with mean pooling."""
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        from sentence_transformers.models import Pooling, Transformer

    modules = [Transformer(str(golden / BERT)), Pooling(32, pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "dense"))
    return folder / "dense"


def made_stair(golden: Path, folder: Path) -> Path:
    """A STAIR model with random weights."""
    import torch
    from transformers import AutoTokenizer

    from lexvl_anserini.encoders.families.stair import ImageShape, Stair, StairConfig, TextShape, save_stair

    tokenizer = AutoTokenizer.from_pretrained(str(golden / WORDPIECES))
    torch.manual_seed(3)
    text, image = TextShape(width=16, layers=2, heads=2, max_length=24), ImageShape(32, 16, 24, 2, 2)
    model = Stair(StairConfig(vocab_size=len(tokenizer), text=text, image=image))
    with torch.no_grad():  # the default initialisation leaves hardly a weight above 0
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    save_stair(model, tokenizer, folder / "stair")
    return folder / "stair"


def write_pair(folder: Path, parts: Mapping[str, Any], rows: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    """Writes networks by the prefixes of their weights, other weights, and a configuration."""
    import json

    from safetensors.torch import save_file

    weights = {f"{part}.{key}": value for part, module in parts.items() for key, value in module.state_dict().items()}
    save_file(weights | rows, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def made_twin(golden: Path, folder: Path) -> Path:
    """The dense twin of VDR cross-modal with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    from lexvl_anserini.encoders.parts.images.vision import PatchTransformer

    torch.manual_seed(5)
    shutil.copytree(golden / "vdr/tiny-bert", folder / "twin/bert")
    bert = BertModel(BertConfig.from_pretrained(str(folder / "twin/bert")), add_pooling_layer=False)
    shape = {"resolution": 32, "patch_size": 16, "width": 24, "layers": 2, "heads": 2}
    rows = {"encoder_q.proj": torch.randn(8, bert.config.hidden_size)}
    parts = {"encoder_q": bert, "encoder_p": PatchTransformer(**shape)}
    rows["encoder_p.proj"] = torch.randn(8, 24)
    text = {"type": "dense_crossmodal_text", "model_id": "bert", "max_len": 16}
    config = {"encoder_q": text, "encoder_p": {"type": "dense_crossmodal_image", **shape}}
    return write_pair(folder / "twin", parts, rows, config)


def made_causal(golden: Path, folder: Path, **changes: Any) -> Path:
    """A decoder with random weights: Qwen3 with its head, over the tiny WordPieces."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shutil.copytree(golden / WORDPIECES, folder / "causal")
    torch.manual_seed(11)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = Qwen3Config(**{"vocab_size": 2000, "initializer_range": 0.5, **shape, **heads, **changes})
    Qwen3ForCausalLM(config).save_pretrained(str(folder / "causal"))
    return folder / "causal"


def tiny_vit(folder: Path, seed: int = 11) -> Path:
    """A ViT that reads 16 x 16 pixels as a grid of 4 x 4 cells, with random weights that are not near 0."""
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = ViTModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(str(folder))
    return folder


def made_lexlip(golden: Path, folder: Path) -> Path:
    """A pair over networks with random weights, as `train` writes it for LexLIP."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
    from lexvl_anserini.encoders.parts.pretrained import Standard, TokenHead
    from lexvl_anserini.encoders.parts.tokens import list_token_strings

    torch.manual_seed(7)
    home = folder / "lexlip"
    shutil.copytree(golden / "vdr/tiny-bert", home / "text")
    bert = BertModel(BertConfig.from_pretrained(str(home / "text")), add_pooling_layer=False)
    terms = list_token_strings(AutoTokenizer.from_pretrained(str(home / "text")))[1000:]
    (home / "terms.txt").write_text("".join(f"{term}\n" for term in terms), encoding="utf-8")
    shape = {"resolution": 32, "patch_size": 8, "width": 24, "layers": 2, "heads": 2}
    parts = {
        "encoder_q.bert_model": bert,
        "encoder_q.head": TokenHead(bert.config.hidden_size, 12, len(terms), bridge=False, eps=1e-12),
        "encoder_p.backbone": PatchTransformer(**shape),
        "encoder_p.standard": Standard(24),
        "encoder_p.head": TokenHead(24, 12, len(terms), bridge=False, eps=1e-12),
    }
    rows = {f"{side}.proj": 0.3 * torch.randn(len(terms), 12) for side in ("encoder_q", "encoder_p")}
    text = {"type": "lexlip_text", "model_id": "text", "max_len": 40, "terms": "terms.txt"}
    config = {"encoder_q": text, "encoder_p": {"type": "lexlip_image", "grid": 2, **shape}}
    return write_pair(home, parts, rows, config)


def copied(place: Path, to: Path) -> Path:
    """A checkpoint's copy that a test may damage, with what its configuration names beside it."""
    to.mkdir()
    if place.is_file():
        copy = Path(shutil.copy(place, to))
    else:
        for beside in place.parent.glob("tiny-bert*"):  # VDR's `model_id` is looked for beside the checkpoint
            shutil.copytree(beside, to / beside.name)
        copy = Path(shutil.copytree(place, to / place.name))
    for path in to.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def weight_files(checkpoint: Path) -> list[Path]:
    """The file itself, or all weight files below the folder."""
    from lexvl_anserini.encoders.checkpoints.find import WEIGHT_SUFFIXES

    if checkpoint.is_file():
        return [checkpoint]
    return [path for path in checkpoint.rglob("*") if path.suffix in WEIGHT_SUFFIXES]


def close(found: Any, expected: Any, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Equal up to the tolerances; `found` may be a sparse matrix or a tensor."""
    import numpy as np

    found = found.toarray() if hasattr(found, "toarray") else found.detach() if hasattr(found, "detach") else found
    np.testing.assert_allclose(found, expected, atol=atol, rtol=rtol)


def as_open_layout(weights: Mapping[str, Any], declip: bool = False) -> dict[str, Any]:
    """Weights of transformers' CLIP as OpenAI's or DeCLIP's files have them: query, key and value in one matrix."""
    import torch

    from lexvl_anserini.encoders.checkpoints.clip_layout import name_in_file

    stored: dict[str, Any] = {}
    for key, value in sorted(weights.items(), key=lambda item: item[0].replace(".q_proj", ".a_proj")):
        name = name_in_file(key, declip)
        value = value.T.contiguous() if name in ("visual.proj", "text_projection") else value
        stored[name] = torch.cat([stored[name], value]) if name in stored else value
    return stored


class Runs:
    """Pickles as the call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


LAVIS = {"tokenizer": f"path:{WORDPIECES}", "head_width": 16}

TINY_ENCODERS: Mapping[str, Tiny] = {
    "albef": Tiny("albef", ALBEF, LAVIS),
    "bag-of-tokens": Tiny("bag-of-tokens", BERT),
    "bertlex vdr": Tiny("bertlex", BERT, {"topk": 32}),
    "bertlex mlm": Tiny("bertlex", BERT, {"head": "mlm", "topk": 32}),
    "blip": Tiny("blip", BLIP, LAVIS),
    "bm25": Tiny("bm25", None),
    "clip": Tiny("clip", "shared/golden/clip/ckpt_eos_v5"),
    "d2s": Tiny("d2s", "shared/golden/d2s/ckpt", {"tokenizer": f"path:{WORDPIECES}"}, vectors=16),
    "dense-crossmodal": Tiny("dense-crossmodal", made_twin),
    "dpr": Tiny(
        "dpr", "shared/golden/dpr/ckpt_ctx_v5", {"query_checkpoint": "path:shared/golden/dpr/ckpt_question_v5"}
    ),
    "fdt weights": Tiny("fdt", "shared/golden/fdt"),
    "fdt features": Tiny("fdt", "shared/golden/fdt", {"space": "features"}),
    "joint sparse": Tiny(
        "joint", "shared/golden/joint/checkpoint_best.ckpt", {"tokenizer": f"path:{WORDPIECES}"}, vectors=24
    ),
    "lexlip": Tiny("lexlip", made_lexlip),
    "sentence": Tiny("sentence", made_dense),
    "splade causal": Tiny("splade", made_causal, {"pooling": "last"}),
    "splade max": Tiny("splade", DISTILBERT),
    "splade sum": Tiny("splade", BERT, {"pooling": "sum"}),
    "splade doc-only": Tiny("splade", BERT, {"doc_only": True}),
    "splade topk": Tiny("splade", BERT, {"topk": 16, "query_topk": 4}),
    "splade lexical": Tiny("splade", BERT, {"lexical": "both"}),
    "splade idf": Tiny("splade", f"{SPARSE}st6_inference_free_idf_log1p", {"query_topk": 3}),
    "stair": Tiny("stair", made_stair),
    "stair own": Tiny("stair", made_stair, {"text_mask": "own", "padding": "max_length"}),
    "svdr": Tiny("svdr", PUBLISHED, {"padding": "none"}),
    "vdr untrained": Tiny("vdr", BERT, {"topk": 32}),
    "vdr full": Tiny("vdr", PUBLISHED),
    "vdr unpadded union": Tiny("vdr", PUBLISHED, {"padding": "none", "lexical_union": True}),
    "vdr alpha": Tiny("vdr", PUBLISHED, {"mode": "alpha"}),
    "vdr beta": Tiny("vdr", PUBLISHED, {"mode": "beta"}),
    "vdr norm": Tiny("vdr", "vdr/text-tiny-norm", {"mode": "alpha"}),
    "vdr shared": Tiny("vdr", "vdr/text-tiny-shared"),
    "vdr-crossmodal": Tiny("vdr-crossmodal", CROSSMODAL),
    "vdr-crossmodal alpha": Tiny("vdr-crossmodal", CROSSMODAL, {"mode": "alpha", "direction": "image-to-text"}),
}

# Arguments of contracts, each with its rows of a table: all that fit, or of each encoder the first that fits.
EVERY_ROW: Mapping[str, Callable[[Tiny], Any]] = {
    "every": lambda tiny: True,
    "any_model": lambda tiny: tiny.encoder != "bm25",
    "model": lambda tiny: tiny.encoder in ("bag-of-tokens", "splade", "bertlex", "vdr", "svdr"),
    "weighted": lambda tiny: tiny.has_weights,
    "directed": lambda tiny: tiny.directions,
    "limited": lambda tiny: tiny.encoder in ("stair", "lexlip", "bertlex", "d2s"),
    "of_unit_length": lambda tiny: tiny.encoder in ("stair", "lexlip"),
}
FIRST_ROWS: Mapping[str, Callable[[Tiny], Any]] = {
    # Without the encoders that read others' layouts.
    "damaged": lambda tiny: tiny.has_weights and tiny.encoder not in ("svdr", "bertlex", "sentence"),
    "reader": lambda tiny: not tiny.vectors,
    "reader_of_images": lambda tiny: tiny.reads_images,
    "reader_of_texts": lambda tiny: "image" not in CARDS[tiny.encoder].modalities,
    "reader_of_vectors": lambda tiny: tiny.vectors,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives each contract the rows of its module's table; a fixture of an argument's name gets them as `param`."""
    table: dict[str, Tiny] = metafunc.module.TINY_ENCODERS
    firsts = {tiny.encoder: tiny for tiny in reversed(table.values())}
    for choices, rows in ((EVERY_ROW, table), (FIRST_ROWS, firsts)):
        for name in choices.keys() & {*metafunc.fixturenames}:
            chosen = [
                pytest.param(tiny, marks=tiny.marks, id=label) for label, tiny in rows.items() if choices[name](tiny)
            ]
            metafunc.parametrize(name, chosen, indirect=name in ("any_model", "model", "damaged"))
