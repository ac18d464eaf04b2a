"""SPLADE in the formats of transformers, sentence-transformers and naver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from lexvl_anserini.encoders.cards import name_readers
from lexvl_anserini.encoders.checkpoints.find import (
    NAVER_WEIGHTS,
    Checkpoint,
    find_checkpoint,
    has_tokenizer,
    resolve_inside,
)
from lexvl_anserini.encoders.checkpoints.naver_layout import Run, SideFiles, build_masked_lm, read_run
from lexvl_anserini.encoders.checkpoints.sentence_layout import (
    ABOUT_FILE,
    MODULES,
    get_class_name,
    read_about,
    read_modules,
)
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_language_model, read_config, read_position_limit
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.sparsify import keep_own, keep_top
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    TokenColumns,
    add_lower_casing,
    load_tokenizer,
    make_all_columns,
    make_columns_without,
    refuse_size,
)
from lexvl_anserini.encoders.parts.towers import (
    POOLINGS,
    Activation,
    Backbone,
    Composition,
    Head,
    Pooling,
    TextTower,
    log1p_log1p_relu,
    log1p_relu,
)
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import read_json

# In the description of a table of token weights: repeated tokens add up. Only this package reads it.
ADDS = "adds"
# Tokens per text in naver's configurations.
MAX_LENGTH = 256
# A matrix with more rows than tokens, but fewer than this many or this share more, is padded: usual multiples are 8 to
# 128, and Qwen3 has 267 rows after its 151,669 tokens.
PADDING_ROWS, PADDING_SHARE = 128, 1 / 500

Lexical = Literal["none", "query", "document", "both"]


@dataclass(frozen=True)
class SpladeSide:
    """One side of a model. `weight` [V] instead of a backbone means inference-free queries, which `adds` adds up.

    With `bag`, queries are by default binary bags of their own tokens; with `lexical`, only own tokens are kept.
    """

    tokenizer: Any
    columns: TokenColumns
    max_length: int
    limit: int | None = None
    backbone: Backbone | None = None
    head: Head | None = None
    pooling: Pooling = POOLINGS["max"]
    activation: Activation = log1p_relu
    weight: np.ndarray | None = None
    adds: bool = False
    topk: int | None = None
    prompt: str = ""
    bag: bool = False
    lexical: bool = False


def load_splade(
    source: Source,
    pooling: Literal["max", "sum", "last"] | None = None,
    doc_only: bool | None = None,
    lexical: Lexical | None = None,
    topk: int | None = None,
    query_topk: int | None = None,
    max_length: int | None = None,
    query_max_length: int | None = None,
    query_checkpoint: str | None = None,
) -> Encoder:
    """SPLADE: w_j = max_i log(1 + relu(logit_ij)) over the head of a language model.

    Reads plain Hugging Face folders of masked and of causal language models, SparseEncoder folders of
    sentence-transformers (5.x and 6.x layouts) and files of naver/splade's trainers: runs with one or two encoders,
    `model.tar`.

    Published variants are options: v3-lexical is `lexical=query`, v3-doc `doc_only=true`, efficient SPLADE its `-doc`
    checkpoint with `query_checkpoint` its `-query` one. SPLADE-Code is a causal model whose tokens see each other.

    Args:
        source: the document (or only) encoder.
        pooling: max (v2 and later), sum (v1), or last, the last token of a causal model; default the folder's own,
            else max.
        doc_only: queries are binary bags of their own tokens, without a network (SPLADE-doc, v3-doc); default as in a
            run's config.yaml, else false.
        lexical: sides that keep only their own tokens (SPLADE-lexical; v3-lexical: query); default as in a run's
            config.yaml, else none.
        topk: dimensions kept per document; default all positive ones (or the folder's max_active_dims).
        query_topk: the same for queries; `topk` does not change it.
        max_length: tokens per document; default the folder's own, else 256.
        query_max_length: tokens per query; default the folder's own, else 256.
        query_checkpoint: another folder or hub id for queries (efficient SPLADE).
    """
    weighted_queries = query_checkpoint or query_topk is not None or lexical in ("query", "both")
    if doc_only and weighted_queries:
        options = "query_checkpoint, query_topk or lexical=query"
        raise UsageError(f"encoder 'splade': doc_only leaves no query encoder for {options}")
    checkpoint = source.required("splade")
    sides = read_sides(checkpoint, source)
    query, document = sides["query"], sides["document"]
    if query_checkpoint is not None:
        other = find_checkpoint(query_checkpoint)
        query = read_sides(other, query_source(other, source))["query"]
    if query.columns.vocabulary.digest != document.columns.vocabulary.digest:
        where = query_checkpoint or "its query side"
        raise CheckpointError(f"{checkpoint.path}: {where} has another vocabulary than its documents")
    # Options of weighted queries override the bags that a model was trained with.
    if query.bag and not weighted_queries if doc_only is None else doc_only:
        reader = TextReader(query.tokenizer, query_max_length or query.max_length)
        query_tower: BagTower | TextTower = BagTower(reader, make_all_columns(query.tokenizer))
    else:
        own_only = query.lexical if lexical is None else lexical in ("query", "both")
        query_tower = build_tower(query, source, pooling, own_only, query_topk, query_max_length)
    own_only = document.lexical if lexical is None else lexical in ("document", "both")
    document_tower = build_tower(document, source, pooling, own_only, topk, max_length)
    return Encoder("splade", "impact", query=query_tower, document=document_tower)


def query_source(other: Checkpoint, source: Source) -> Source:
    """The source of a separate query encoder; a folder without tokenizer uses that of the documents."""
    alone = has_tokenizer(other.folder) or (other.folder / "modules.json").is_file()
    return Source(other, source.device, None if alone else str(source.tokenizer_folder()))


def build_tower(
    parts: SpladeSide, source: Source, pooling: str | None, lexical: bool, topk: int | None, max_length: int | None
) -> BagTower | TextTower:
    """The tower of one side; None keeps the folder's own setting."""
    length = parts.max_length if max_length is None else max_length
    reader = TextReader(parts.tokenizer, length, specials=parts.weight is None, limit=parts.limit, prompt=parts.prompt)
    k = parts.topk if topk is None else topk
    largest = keep_top(k)
    if parts.backbone is None or parts.head is None:
        return BagTower(reader, parts.columns, parts.weight, topk=k, adds=parts.adds)
    pool = parts.pooling if pooling is None else POOLINGS[pooling]
    composition = Composition(parts.backbone, parts.head, parts.activation, pool, keep_own() if lexical else largest)
    return TextTower(composition, reader, parts.columns, source.device)


def read_sides(checkpoint: Checkpoint, source: Source) -> dict[str, SpladeSide]:
    """Query side and document side of a checkpoint, in any layout."""
    if checkpoint.file is None and (checkpoint.folder / "modules.json").is_file():
        return load_sentence_transformers_sides(checkpoint.folder, source)
    if (run := read_run(checkpoint, source.backbone_config, source.tokenizer)) is not None:
        return run_sides(run, source)
    parts = load_masked_lm_parts(checkpoint.folder, source, source.tokenizer_folder(), MAX_LENGTH)
    return {"query": parts, "document": parts}


def run_sides(run: Run, source: Source) -> dict[str, SpladeSide]:
    """The sides of a run of naver's trainers, with the settings of its recipe."""
    recipe, pooling = run.recipe, POOLINGS[run.recipe.pooling]

    def load(side: SideFiles) -> SpladeSide:
        length = recipe.max_length or MAX_LENGTH
        parts = load_masked_lm_parts(side.config, source, side.tokenizer, length, side.weights)
        return replace(parts, pooling=pooling)

    document = load(run.document)
    query = replace(load(run.query) if run.query else document, bag=recipe.doc_only)
    return {
        "query": replace(query, topk=recipe.query_topk, lexical=recipe.lexical in ("query", "both")),
        "document": replace(document, topk=recipe.topk, lexical=recipe.lexical in ("document", "both")),
    }


def load_masked_lm_parts(
    folder: Path,
    source: Source,
    tokenizer_folder: Path,
    max_length: int | None,
    weights: Mapping[str, Tensor] | None = None,
    lower_case: bool = False,
    **rest: Any,
) -> SpladeSide:
    """Backbone, head and tokenizer of one masked-LM folder, or of its configuration and `weights`."""
    if weights is None:
        backbone, head, _ = load_language_model(folder, source.device)
    else:
        backbone, head, _ = build_masked_lm(folder, weights, f"{folder}: {NAVER_WEIGHTS}", source.device)
    tokenizer = load_tokenizer(tokenizer_folder)
    if lower_case:
        tokenizer = add_lower_casing(tokenizer)
    count = len(tokenizer)
    if not fits(len(head.matrix), tokenizer):
        refuse_size(tokenizer_folder, count, len(head.matrix))
    # Rows without a token are not dimensions.
    head = Head(head.transform, head.matrix[:count], None if head.bias is None else head.bias[:count])
    limit = read_position_limit(read_config(folder))
    length = max_length or tokenizer.model_max_length
    columns, length = make_all_columns(tokenizer), min(length, limit or length)
    return SpladeSide(tokenizer, columns, length, limit, backbone=backbone, head=head, **rest)


def fits(rows: int, tokenizer: Any) -> bool:
    """True if the first rows of a matrix are those of a tokenizer's tokens, and the others are padding.

    With more padding than `PADDING_ROWS` and `PADDING_SHARE` permit, or than tokens, the tokenizer is another model's.
    With gaps between the ids, the last rows would be those of tokens.
    """
    count = len(tokenizer)
    return rows == count or is_padded(rows, count) and max(tokenizer.get_vocab().values()) < count


def is_padded(rows: int, count: int) -> bool:
    """Whether a matrix of so many rows may be one of `count` tokens and padding."""
    return count < rows < count + min(max(PADDING_ROWS, PADDING_SHARE * count), count)


def load_sentence_transformers_sides(folder: Path, source: Source) -> dict[str, SpladeSide]:
    """The sides of a SparseEncoder folder: one chain of modules, or a Router with one chain per side."""
    description, chain = read_about(folder), [(part.name, part.folder) for part in read_modules(folder)]
    prompts = description.get("prompts") or {}
    topk = description.get("max_active_dims")
    if [name for name, _ in chain] == ["Router"]:
        routes = chain[0][1] / "router_config.json"
        router = read_json(routes, "router description", CheckpointError)
        if missing := {"query", "document"} - set(router["structure"]):
            raise CheckpointError(f"{routes}: no route for {', '.join(sorted(missing))}")
        sides = {}
        for side in ("query", "document"):
            named = ((resolve_inside(routes.parent, name, str(routes)), name) for name in router["structure"][side])
            parts = [(get_class_name(router["types"][name]), place) for place, name in named]
            sides[side] = load_chain_parts(parts, folder, source, topk)
    else:
        sides = dict.fromkeys(("query", "document"), load_chain_parts(chain, folder, source, topk))
    if (similarity := description.get("similarity_fn_name") or "dot") != "dot":
        expected = "an impact index adds products of weights (dot); if the model uses dot, set it there"
        raise CheckpointError(f"{folder / ABOUT_FILE}: similarity_fn_name {similarity!r}, but {expected}")
    return {side: replace(parts, prompt=prompts.get(side) or "") for side, parts in sides.items()}


def load_chain_parts(chain: Sequence[tuple[str, Path]], folder: Path, source: Source, topk: int | None) -> SpladeSide:
    """One chain of modules: [Transformer, SpladePooling] or [SparseStaticEmbedding]."""
    match chain:
        case [("SparseStaticEmbedding", path)]:
            return load_static_parts(path, topk)
        case [("MLMTransformer" | "Transformer", path), ("SpladePooling", pooling_path)]:
            limits_file = path / "sentence_bert_config.json"
            limits = read_json(limits_file, "limits", CheckpointError) if limits_file.is_file() else {}
            return load_masked_lm_parts(
                path,
                source,
                path if source.tokenizer is None else source.tokenizer_folder(),
                limits.get("max_seq_length"),
                lower_case=bool(limits.get("do_lower_case")),
                topk=topk,
                **read_splade_pooling(pooling_path),
            )
    names = [name for name, _ in chain]
    readers = "--encoder sentence" if {*names} <= {*MODULES} else name_readers(names[-1], "splade")
    expected = "a SPLADE folder has Transformer and SpladePooling or SparseStaticEmbedding"
    raise CheckpointError(f"{folder}: modules {', '.join(names)}; {expected}; load it with {readers}")


def read_splade_pooling(where: Path) -> dict[str, Any]:
    """Pooling and activation of `1_SpladePooling/config.json`."""
    config = read_json(where / "config.json", "pooling", CheckpointError)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    activations = {"relu": log1p_relu, "log1p_relu": log1p_log1p_relu}
    if strategy not in POOLINGS or activation not in activations:
        known = f"pooling {strategy!r} with {activation!r} is not known (max or sum; relu or log1p_relu)"
        raise CheckpointError(f"{where}: {known}")
    return {"pooling": POOLINGS[strategy], "activation": activations[activation]}


def load_static_parts(folder: Path, topk: int | None) -> SpladeSide:
    """Inference-free queries: one stored weight per token, tokenised without special tokens."""
    config_file = folder / "config.json"
    config = read_json(config_file, "static embedding", CheckpointError) if config_file.is_file() else {}
    tokenizer = load_tokenizer(folder)
    if path := config.get("path"):
        by_token = read_json(resolve_inside(folder, path, str(config_file)), "token weights", CheckpointError)
        weight = np.zeros(len(tokenizer), dtype=np.float32)
        for token, value in by_token.items():
            weight[tokenizer.convert_tokens_to_ids(token)] = value
    else:
        stored = read_weights(folder)
        if "weight" not in stored:
            raise CheckpointError(f"{folder}: no tensor 'weight', found {', '.join(sorted(stored)[:10])}")
        weight = stored["weight"].float().numpy().reshape(-1)
    if not fits(len(weight), tokenizer):
        raise CheckpointError(f"{folder}: {len(weight)} weights for {len(tokenizer)} tokens")
    if type(adds := config.get(ADDS, False)) is not bool:
        raise CheckpointError(f"{config_file}: {ADDS} {adds!r:.80}, expected true or false")
    # The tokenizer adds no special tokens, so one in a text counts as its own token.
    columns, reader = make_columns_without(tokenizer, []), load_table_reader(tokenizer)
    weight = weight[: len(tokenizer)]
    return SpladeSide(tokenizer, columns, reader.max_length, weight=weight, adds=adds, topk=topk)


def load_table_reader(tokenizer: Any) -> TextReader:
    """Reads the texts of a table, without special tokens and to the tokenizer's own limit, as sentence-transformers."""
    return TextReader(tokenizer, int(min(tokenizer.model_max_length, 1 << 20)), specials=False)
