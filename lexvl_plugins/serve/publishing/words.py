"""What the page needs to read a query as the index's encoder does: BERT's WordPiece and the dimensions of tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.parts.bags import BagTower
from lexvl_anserini.encoders.parts.tokens import token_strings
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.quantise import CsrRows, Quantiser
from lexvl_plugins.serve.publishing.data_files import as_text, varying

# The rule that `static.js` implements; a tokenizer with other parts is refused.
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
SPLITTER = {"type": "BertPreTokenizer"}
PREFIX = "##"


def bag_of(model: Encoder) -> BagTower:
    """The query side of an encoder, which weighs each token of a text 1.

    Raises:
        UsageError: another query side, whose weights a page cannot compute.
    """
    tower = model.query
    if not isinstance(tower, BagTower) or not tower.binary or tower.topk is not None:
        raise UsageError(
            f"queries of the encoder {model.name!r} need more than their words, which a page without a server cannot "
            "compute; expected one whose queries are bags of words (--set mode=alpha, where it has this mode)"
        )
    return tower


def words_of(model: Encoder, manifest: Manifest) -> dict[str, Any]:
    """The tokenizer of an encoder's query side as the page reads it, and the weights of an index's queries.

    tokens    all tokens, in the order of their ids, with line feeds between them
    columns   the dimension + 1 of each token, 0 if it has none, as `varying`
    specials  tokens that a text may name as they are
    most      tokens of a text that are read
    longest   characters of the longest word that is split
    weights   the weight of each term in a query of 0, 1, ... terms

    Raises:
        UsageError: a query side whose weights a page cannot compute, or another tokenizer than BERT's with lower case.
    """
    tower = bag_of(model)
    reader = tower.reader
    rule = json.loads(reader.tokenizer.backend_tokenizer.to_str())
    normalizer, pieces = rule["normalizer"] or {}, rule["model"]
    as_expected = (
        {key: normalizer.get(key) for key in NORMALIZER} == NORMALIZER
        and normalizer.get("strip_accents") in (None, True)
        and rule["pre_tokenizer"] == SPLITTER
        and pieces["type"] == "WordPiece"
        and pieces["continuing_subword_prefix"] == PREFIX
        and reader.tokenizer.truncation_side == "right"
        and not reader.prompt
    )
    if not as_expected:
        raise UsageError(
            f"the tokenizer of this index is {pieces['type']} with the normaliser {normalizer.get('type')}; a page "
            "without a server reads words by the WordPiece of BERT with lower case alone"
        )
    most = reader.max_length - reader.special_tokens
    return {
        "tokens": as_text(np.frombuffer("\n".join(token_strings(reader.tokenizer)).encode(), np.uint8)),
        "columns": as_text(varying(tower.columns.of_token + 1)),
        "specials": [token["content"] for token in rule["added_tokens"]],
        "most": most,
        "longest": pieces["max_input_chars_per_word"],
        "weights": [0, *weights_by_size(manifest, min(most, len(tower.vocabulary)))],
    }


def weights_by_size(manifest: Manifest, most: int) -> list[int]:
    """The weight that the quantiser of an index gives each term of a query of 1 to `most` equal terms."""
    sizes = np.arange(1, most + 1)
    pointers = np.concatenate([[0], np.cumsum(sizes)])
    columns = np.concatenate([np.arange(size) for size in sizes])
    queries = CsrRows(np.ones(len(columns), np.float32), columns, pointers, (most, most))
    integers = Quantiser.from_json(manifest.quantiser).queries(queries, manifest.counts.max_impact)
    weights: list[int] = integers.impacts.data[integers.impacts.indptr[:-1]].tolist()
    return weights
