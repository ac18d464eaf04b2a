"""The model of a recipe: a pair of towers for images and texts, or for texts alone, fresh or from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_plugins.train.words import CHARACTERS


class Settings(BaseModel):
    """Keys of a recipe; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, lt=1)]


def _check_heads(side: TextSettings | BpeTextSettings | ImageSettings) -> None:
    if side.width % side.heads:
        raise ValueError(f"width {side.width} is no multiple of heads {side.heads}")


class TextSettings(Settings):
    """The text side: a network with random weights, over a vocabulary learned from the training captions.

    Attributes:
        tokenizer: instead of a learned vocabulary: the checkpoint whose tokenizer it reads (minilm, a folder or a hub
            id); its tokens are the dimensions of a lexical pair (`TextNetwork` says which).
        words: largest number of tokens of a learned vocabulary.
        max_length: tokens read of a text, special tokens included.
    """

    tokenizer: str | None = None
    words: PositiveInt = 2000
    max_length: PositiveInt = 32
    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    dropout: Share = 0.0

    def shape(self, tokens: int) -> dict[str, Any]:
        """The arguments of a BertConfig for so many tokens, but for dropout."""
        widths = {"hidden_size": self.width, "intermediate_size": 4 * self.width}
        blocks = {"num_hidden_layers": self.layers, "num_attention_heads": self.heads}
        return {"vocab_size": tokens, **widths, **blocks, "max_position_embeddings": self.max_length}

    @model_validator(mode="after")
    def _check(self) -> TextSettings:
        if self.tokenizer is not None and self.words != TextSettings.model_fields["words"].default:
            raise ValueError(f"words {self.words}: the tokenizer of {self.tokenizer} has its own; leave words out")
        _check_heads(self)
        return self


class BpeTextSettings(Settings):
    """The text side: CLIP's causal transformer with random weights, over the tokens of a BPE merges file, as FDT's.

    OpenAI's bpe_simple_vocab_16e6.txt.gz gives 49,409 tokens. A text has at most `max_length`, special ones included.
    """

    merges: str
    max_length: PositiveInt = 77
    width: PositiveInt = 512
    layers: PositiveInt = 12
    heads: PositiveInt = 8
    dropout: ClassVar[float] = 0.0

    @model_validator(mode="after")
    def _check(self) -> BpeTextSettings:
        _check_heads(self)
        return self


class StemSettings(Settings):
    """A convolutional stem: channels and residual blocks of each stage; each stage halves the grid."""

    widths: tuple[PositiveInt, ...] = Field(min_length=1)
    blocks: tuple[NonNegativeInt, ...]

    @model_validator(mode="after")
    def _check(self) -> StemSettings:
        if len(self.widths) != len(self.blocks):
            raise ValueError(f"{len(self.widths)} widths and {len(self.blocks)} blocks; expected one of each per stage")
        return self


class ImageSettings(Settings):
    """The image side: a patch transformer with random weights; `patch_size` is the total stride of a stem."""

    resolution: PositiveInt = 64
    patch_size: PositiveInt = 8
    width: PositiveInt = 128
    layers: int = Field(default=2, ge=0)
    heads: PositiveInt = 4
    stem: StemSettings | None = None

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of a PatchTransformer, as config.json stores them."""
        return {key: value for key, value in self.model_dump(mode="json").items() if value is not None}

    @property
    def grid(self) -> int:
        """The patches of a side of the image."""
        return self.resolution // self.patch_size

    @model_validator(mode="after")
    def _check(self) -> ImageSettings:
        if self.resolution % self.patch_size:
            raise ValueError(f"resolution {self.resolution} is no multiple of patch_size {self.patch_size}")
        _check_heads(self)
        if self.stem and (stride := 2 ** len(self.stem.widths)) != self.patch_size:
            raise ValueError(f"a stem of {len(self.stem.widths)} stages has stride {stride}, not {self.patch_size}")
        return self


class SwinSettings(Settings):
    """The image side: a Swin transformer V2 with random weights, for FDT beside CLIP's texts.

    Attributes:
        width: of the states of the first stage; each further stage doubles it and halves the grid.
        depths: blocks of each stage.
        drop_path: largest share of the blocks that a step of training leaves out; it grows from block to block.
    """

    resolution: PositiveInt = 224
    patch_size: PositiveInt = 4
    width: PositiveInt = 128
    depths: tuple[PositiveInt, ...] = Field(min_length=1)
    heads: tuple[PositiveInt, ...] = (4, 8, 16, 32)
    window: PositiveInt = 7
    drop_path: Share = 0.5

    @property
    def grid(self) -> int:
        """The cells of a side of the last stage."""
        return self.resolution // (self.patch_size << (len(self.depths) - 1))

    @model_validator(mode="after")
    def _check(self) -> SwinSettings:
        stages = len(self.depths)
        if len(self.heads) != stages:
            raise ValueError(f"{stages} depths and {len(self.heads)} heads; expected one of each per stage")
        if wrong := [n for n, heads in enumerate(self.heads) if (self.width << n) % heads]:
            raise ValueError(f"width {self.width << wrong[0]} of stage {wrong[0]} is no multiple of its heads")
        if self.resolution % (cell := self.patch_size << (stages - 1)):
            raise ValueError(f"resolution {self.resolution} is no multiple of {cell} pixels, a cell of the last stage")
        return self


class PretrainedText(Settings):
    """The text side: a pretrained BERT.

    Attributes:
        terms: the dimensions of a lexical pair: words, the whole words of the training captions, which become tokens;
            or tokens, those of its tokenizer as they are.
        least: smallest number of training captions with a word that is a term; function words are none.
    """

    checkpoint: str
    terms: Literal["words", "tokens"] = "words"
    least: PositiveInt = 3
    max_length: PositiveInt = 64
    dropout: Share = 0.0


class PretrainedImage(Settings):
    """The image side: a pretrained network, of which the head reads the mean state and `grid` x `grid` averaged cells.

    Attributes:
        class_names: JSON list of the names of the classes that the network was pretrained to tell apart: their words
            become terms of a lexical pair too.
        cells: share of the cells that are left out, a regulariser of the maximum over cells.
        resolution: the side of images in pixels, if it is not the network's own: a folder of transformers interpolates
            its positions (`images/resolution.py`), also those of the pair that `start` names.
    """

    checkpoint: str
    grid: PositiveInt = 3
    resolution: PositiveInt | None = None
    class_names: str | None = None
    dropout: Share = 0.0
    cells: Share = 0.0


# The names by which pydantic tells the settings of a side apart, each by a key that the side has; they are no part of a
# key. A side with none of the keys is fresh.
FRESH, PRETRAINED, BPE, SWIN, TABLE = FORMS = ("(fresh)", "(pretrained)", "(bpe)", "(swin)", "(table)")
TOLD_BY: Mapping[str, str] = {"checkpoint": PRETRAINED, "merges": BPE, "depths": SWIN, "table": TABLE}


def _choose_by(*keys: str) -> Discriminator:
    def form_of(value: Any) -> str:
        for key in keys:
            if (value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)) is not None:
                return TOLD_BY[key]
        return FRESH

    return Discriminator(form_of)


AnyText = Annotated[
    Annotated[TextSettings, Tag(FRESH)]
    | Annotated[BpeTextSettings, Tag(BPE)]
    | Annotated[PretrainedText, Tag(PRETRAINED)],
    _choose_by("checkpoint", "merges"),
]
AnyImage = Annotated[
    Annotated[ImageSettings, Tag(FRESH)]
    | Annotated[SwinSettings, Tag(SWIN)]
    | Annotated[PretrainedImage, Tag(PRETRAINED)],
    _choose_by("checkpoint", "depths"),
]


class CodebookSettings(Settings):
    """FDT's codebook, and how relevances become weights.

    Attributes:
        attention: from the relevances of an item to its weights.
        temperature: T of the first steps, which divides relevances: a high one spreads weights over many terms.
        decay, every: factor of T, and the steps after which it applies.
        least: lower limit of T.
    """

    terms: PositiveInt = 16_384
    width: PositiveInt = 512
    attention: Literal["sparsemax", "softmax", "sigmoid"] = "sparsemax"
    temperature: PositiveFloat = 1000.0
    decay: PositiveFloat = 1.0
    every: PositiveInt = 2700
    least: PositiveFloat = 0.01


class PoolingSettings(Settings):
    """What makes one state of the states of a text, and of an image: first is the class token of both.

    The paper of STAIR does not say what its CLIP does. CLIP itself has the last token of texts and the first of images.
    `attention` is that of a learned query, as many heads as its network has.
    """

    text: Literal["first", "last", "mean", "max", "attention"] = "last"
    image: Literal["first", "mean", "max", "attention"] = "first"


class ImageKind(NamedTuple):
    """What a family is: of terms, of vectors that search divides by their norm, or cut to `topk` by a checkpoint.

    It `computes` objectives that read more than the vectors of both sides.
    """

    lexical: bool
    unit: bool = True
    cut: bool = False
    computes: frozenset[str] = frozenset()


IMAGE_KINDS: Mapping[str, ImageKind] = {
    "vdr-crossmodal": ImageKind(lexical=True, cut=True),
    "dense-crossmodal": ImageKind(lexical=False),
    "stair": ImageKind(lexical=True, computes=frozenset({"caption_gated"})),
    "lexlip": ImageKind(lexical=True, computes=frozenset({"caption_gated", "masked_words", "lexlip_momentum"})),
    "fdt": ImageKind(lexical=False, computes=frozenset({"fdt"})),
    "d2s": ImageKind(lexical=True, unit=False, computes=frozenset({"d2s"})),
    "joint": ImageKind(lexical=True, unit=False, computes=frozenset({"d2s", "joint"})),
}


class ImagePairSettings(Settings):
    """A pair of towers, one for texts and one for images; subclasses have its keys.

    A lexical checkpoint, where its family cuts vectors, keeps `topk` dimensions of an image, and `text_topk` or as many
    of a text besides its own tokens.
    """

    of_texts: ClassVar[bool] = False
    kind: str
    topk: PositiveInt = 64
    text_topk: PositiveInt | None = None

    @property
    def family(self) -> ImageKind:
        """What the family is."""
        return IMAGE_KINDS[self.kind]

    @property
    def lexical(self) -> bool:
        """Whether dimensions are terms."""
        return self.family.lexical

    @property
    def computes(self) -> frozenset[str]:
        """Objectives that read more than the vectors of both sides, which this pair computes."""
        return self.family.computes

    @property
    def kept_of_texts(self) -> int:
        """Dimensions kept of a text besides its own tokens."""
        return self.text_topk or self.topk

    @property
    def kept(self) -> tuple[int | None, int | None]:
        """The largest number of dimensions kept of a text, besides its own tokens, and of an image; None for all."""
        return (self.kept_of_texts, self.topk) if self.family.cut else (None, None)

    @property
    def registers(self) -> int:
        """Dimensions before the words that training uses and the checkpoint drops (see `words`)."""
        return 0


class ModelSettings(ImagePairSettings):
    """A pair of towers over networks of its own.

    Attributes:
        kind: vdr-crossmodal, dense-crossmodal (its CLIP-style twin), stair, lexlip or fdt.
        start: checkpoint of a trained pair over the same networks, whose weights this pair begins with.
        dimensions: of the vectors of the twin.
        hidden: width of the hidden layer of the twin's heads over pretrained networks.
        pooling: the twin is over STAIR's networks, and this makes one state of many; None: over VDR's, with the mean,
            or beside `text.merges` over FDT's.
    """

    kind: Literal["vdr-crossmodal", "dense-crossmodal", "stair", "lexlip", "fdt"]
    text: AnyText = TextSettings()
    image: AnyImage = ImageSettings()
    start: str | None = None
    dimensions: PositiveInt = 256
    hidden: PositiveInt = 512
    pooling: PoolingSettings | None = None
    codebook: CodebookSettings = CodebookSettings()

    @model_validator(mode="after")
    def _check(self) -> ModelSettings:
        texts, images = isinstance(self.text, PretrainedText), isinstance(self.image, PretrainedImage)
        if self.kind == "vdr-crossmodal" and texts and not images and not self.of_tokens:
            raise ValueError("a pretrained text beside a new image has the tokens of its tokenizer: text.terms: tokens")
        if (texts < images and self.kind == "vdr-crossmodal") or (texts != images and self.kind == "dense-crossmodal"):
            raise ValueError("text and image both have a checkpoint, or neither has")
        if isinstance(self.text, BpeTextSettings):
            if self.kind not in ("fdt", "dense-crossmodal") or images or getattr(self.image, "stem", None):
                kinds = "kind fdt or dense-crossmodal"
                raise ValueError(f"text.merges is for {kinds} beside a new image, a ViT without stem or a Swin")
        elif isinstance(self.image, SwinSettings):
            raise ValueError("image.depths (Swin) is beside text.merges (CLIP's texts) only")
        if self.pooling and not (self.kind == "dense-crossmodal" and isinstance(self.text, TextSettings)):
            raise ValueError("pooling is for kind dense-crossmodal over new networks, without checkpoint and merges")
        if self.start is not None and not (texts and images):
            raise ValueError(f"start {self.start}: only a pair over two pretrained networks begins with another")
        if isinstance(self.image, PretrainedImage) and self.image.class_names:
            if self.kind in ("stair", "lexlip", "fdt"):
                raise ValueError(f"class_names: kind {self.kind} has no class words; vdr-crossmodal has")
            if self.of_tokens:
                raise ValueError("class_names: class words are beside words of captions; set text.terms: words")
        return self

    @property
    def projected(self) -> int:
        """The dimensions of the projections of CLIP's networks, which FDT does not use."""
        return self.codebook.width if self.kind == "fdt" else self.dimensions

    @property
    def of_tokens(self) -> bool:
        """Whether the dimensions of a lexical pair are the tokens of a tokenizer that was not learned here."""
        if isinstance(self.text, PretrainedText):
            return self.text.terms == "tokens"
        return isinstance(self.text, TextSettings) and self.text.tokenizer is not None

    @property
    def class_names(self) -> str | None:
        """The file of the names of classes whose words are terms too."""
        return self.image.class_names if self.lexical and isinstance(self.image, PretrainedImage) else None

    @property
    def whole(self) -> bool:
        """Whether new towers are the family's own, whose checkpoint has all weights in the family's own layout."""
        if isinstance(self.image, PretrainedImage):
            return False
        return self.kind == "vdr-crossmodal" or (
            self.kind in ("dense-crossmodal", "stair") and isinstance(self.text, TextSettings)
        )

    @property
    def registers(self) -> int:
        """Dimensions before the words that training uses and the checkpoint drops (see `words`)."""
        return len(CHARACTERS) if self.kind == "vdr-crossmodal" and self.whole and not self.of_tokens else 0


class HeadSettings(ImagePairSettings):
    """A lexical head over a trained dense pair, which does not change, or over the vectors of an `embeddings:` corpus.

    Attributes:
        pair: checkpoint of a `dense-crossmodal` pair: a folder, a hub id, or a packaged name such as photos-dense.
        words: instead of a pair, for stored vectors: the checkpoint whose tokens are the terms, a masked-LM DistilBERT
            or BERT for d2s, a BLIP or ALBEF for joint, which trains its projections.
        head: words: terms begin as the embeddings of their words, for d2s with the masked LM's LayerNorm and bias;
            random: the matrix of terms begins at random (Glorot and Bengio, 2010).
        least: smallest number of training captions with a word that is a term of a pair.
    """

    kind: Literal["d2s", "joint"]
    pair: str | None = None
    words: str | None = None
    head: Literal["words", "random"] = "words"
    least: PositiveInt = 3

    @model_validator(mode="after")
    def _check(self) -> HeadSettings:
        if (self.pair is None) == (self.words is None):
            raise ValueError("expected either `pair` (images and captions) or `words` (stored vectors)")
        return self


class TowerSettings(Settings):
    """A tower from a checkpoint: of its own family, or a plain network that gains a new head.

    The largest number of tokens and the dropout in training are the checkpoint's own where they are None.
    """

    checkpoint: str
    max_length: PositiveInt | None = None
    dropout: Share | None = None


class TableSettings(Settings):
    """Queries without a network: a weight for each token of the documents' tokenizer.

    Attributes:
        table: li_lsr: log(1 + relu(<w, E_t + A_t B> + b)), E the input embeddings of the documents' network before the
            training, which learns w, b, A and B; idf: BM25's IDF of the tokens in the training passages; ones. The last
            two do not change.
        rank: of A B; 0 for none, as in Li-LSR and in V-SPLADE's exports.
        adds: a repeated token adds its weight each time (Li-LSR, V-SPLADE); else it counts once (SPLADE-doc,
            OpenSearch).
    """

    dropout: ClassVar[None] = None
    table: Literal["li_lsr", "idf", "ones"]
    rank: NonNegativeInt = 0
    adds: bool = False

    @model_validator(mode="after")
    def _check(self) -> TableSettings:
        if self.rank and self.table != "li_lsr":
            raise ValueError(f"rank {self.rank}: only li_lsr has A and B")
        return self


AnyTower = Annotated[
    Annotated[TextSettings, Tag(FRESH)] | Annotated[TowerSettings, Tag(PRETRAINED)], _choose_by("checkpoint")
]
AnyQueryTower = Annotated[
    Annotated[TextSettings, Tag(FRESH)]
    | Annotated[TowerSettings, Tag(PRETRAINED)]
    | Annotated[TableSettings, Tag(TABLE)],
    _choose_by("checkpoint", "table"),
]

# Dimensions that a loaded encoder keeps of a text where the recipe says nothing; None for all positive ones.
DEFAULT_TOPK: Mapping[str, int | None] = {"vdr": 768, "svdr": 768, "splade": None}


class TextPairSettings(Settings):
    """A pair of towers that both read texts.

    Attributes:
        kind: the encoder that loads what is trained: vdr, svdr, splade (lexical), dpr or sentence (dense).
        query: the tower of queries; of splade also a table of token weights.
        document: the tower of documents; None for the same network, or for the other one of a checkpoint that has two.
        topk: dimensions that a lexical checkpoint keeps of a document; None for the encoder's default.
        query_topk: the same of a query; None for `topk`.
        projection: of vdr with two towers: tied, terms are the input embeddings of each tower; own, documents have a
            matrix of terms that begins at random, as VDRproj's (Zhou et al., ICLR 2024, appendix C).
        padding: of vdr and svdr: none, the maximum ignores padding; max_length, texts have padding up to max_length,
            and the maximum includes it, as in training and evaluation of the published models.
        saved: whole; or changed, of vdr and svdr over a packaged network: only the weights that training changed.
    """

    of_texts: ClassVar[bool] = True
    computes: ClassVar[frozenset[str]] = frozenset()

    kind: Literal["vdr", "svdr", "splade", "dpr", "sentence"]
    query: AnyQueryTower = TextSettings()
    document: AnyTower | None = None
    topk: PositiveInt | None = None
    query_topk: PositiveInt | None = None
    projection: Literal["tied", "own"] = "tied"
    padding: Literal["none", "max_length"] = "none"
    saved: Literal["whole", "changed"] = "whole"

    @model_validator(mode="after")
    def _check(self) -> TextPairSettings:
        names = [tower.checkpoint if isinstance(tower, TowerSettings) else "" for tower in self.towers]
        if self.saved == "changed" and (self.kind not in ("vdr", "svdr") or not PACKAGED.keys() >= set(names)):
            raise ValueError("saved changed: only vdr and svdr over packaged networks (minilm) can leave these out")
        if self.kind == "sentence" and self.document is not None:
            raise ValueError("kind sentence has one network for queries and documents; leave document out")
        if self.projection == "own" and (self.kind != "vdr" or self.document is None):
            raise ValueError("projection own: the documents of kind vdr alone have it; name model.document too")
        if self.padding == "max_length" and self.kind not in ("vdr", "svdr"):
            raise ValueError(f"padding max_length: vdr and svdr train with it, not {self.kind}")
        if isinstance(self.query, TableSettings) and (self.kind != "splade" or self.document is None):
            raise ValueError("query.table: queries of kind splade alone have it, beside a network in model.document")
        if self.kind == "splade" and self.query_topk is not None:
            raise ValueError("kind splade keeps one topk; leave query_topk out")
        return self

    @property
    def lexical(self) -> bool:
        """Whether dimensions are terms."""
        return self.kind in DEFAULT_TOPK

    @property
    def kept(self) -> tuple[int | None, int | None]:
        """The largest number of dimensions kept of a query and of a document; None for all positive ones."""
        topk = self.topk or DEFAULT_TOPK.get(self.kind)
        return self.query_topk or topk, topk

    @property
    def kept_of_texts(self) -> int:
        """Dimensions that an objective keeps of a masked vector."""
        return self.topk or DEFAULT_TOPK.get(self.kind) or 768

    @property
    def towers(self) -> tuple[AnyTower | TableSettings, ...]:
        """The towers that the recipe names, the queries' first."""
        return (self.query,) if self.document is None else (self.query, self.document)


AnyModel = Annotated[ModelSettings | HeadSettings | TextPairSettings, Field(discriminator="kind")]

# All kinds, by which pydantic tells the settings of models apart; they are no part of a key.
TEXT_KINDS = frozenset(get_args(TextPairSettings.model_fields["kind"].annotation))
KINDS = TEXT_KINDS | frozenset(IMAGE_KINDS)
