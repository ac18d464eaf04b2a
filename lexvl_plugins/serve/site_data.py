"""What a page without a server needs to know of an index, as small texts: words, postings, terms to offer, maps."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.tokens import list_token_strings
from lexvl_anserini.engines.resident.packing import read_vectors
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.quantise import CsrRows, Quantiser
from lexvl_plugins.serve.answering import measure_region

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.parts.images.vision import ImageTower
    from lexvl_anserini.ground.manifest import Manifest
    from lexvl_anserini.ground.records import Vocabulary

# The rule that `static.js` implements; a tokenizer with other parts is refused.
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
SPLITTER = {"type": "BertPreTokenizer"}
PREFIX = "##"

# Bytes of a file of postings, before they are written as text.
RANGE = 1 << 16

# Terms that are offered for a term, and the least cosine. A term of fewer documents is near others by chance.
OFFERED = 5
LEAST = 0.25
LEAST_DOCUMENTS = 3

# Terms that are compared with all others at once: float32 [BATCH, V] is dense.
BATCH = 256

# Steps of a cell between the least and the greatest value of its grid, and of these values themselves.
STEPS = 7
ENDS = 255


def pack(octets: np.ndarray) -> str:
    """Bytes, uint8 [n], in zlib's format (`deflate` in a browser) as base64."""
    return base64.b64encode(zlib.compress(octets.tobytes(), 9)).decode()


def split_numbers(numbers: np.ndarray) -> np.ndarray:
    """Numbers below 2^63 as bytes of 7 bits, the lowest first, of which each but a number's last has the bit 128."""
    numbers = numbers.astype(np.int64)
    places = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    groups = np.stack([numbers >> 7 * place for place in range(places)], axis=1)
    needed = np.ones_like(groups, bool)
    needed[:, 1:] = groups[:, 1:] > 0
    continued = np.zeros_like(needed)
    continued[:, :-1] = needed[:, 1:]
    octets: np.ndarray = ((groups & 127) | (continued << 7)).astype(np.uint8)[needed]
    return octets


# ---- words


def describe_words(model: Encoder, manifest: Manifest) -> dict[str, Any]:
    """The tokenizer of an encoder's query side as the page reads it, and the weights of an index's queries.

    * tokens: all tokens, in the order of their ids, with line feeds between them;
    * columns: the dimension + 1 of each token, 0 if it has none, as `split_numbers`;
    * specials: tokens that a text may name as they are;
    * most: tokens of a text that are read;
    * longest: characters of the longest word that is split;
    * weights: the weight of each term in a query of 0, 1, ... terms.
    """
    tower = model.query
    if not isinstance(tower, BagTower) or not tower.binary or tower.topk is not None:
        raise UsageError(
            f"queries of the encoder {model.name!r} need more than their words, which a page without a server cannot "
            "compute; expected one whose queries are bags of words (--set mode=alpha, where it has this mode)"
        )
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
        "tokens": pack(np.frombuffer("\n".join(list_token_strings(reader.tokenizer)).encode(), np.uint8)),
        "columns": pack(split_numbers(tower.columns.of_token + 1)),
        "specials": [token["content"] for token in rule["added_tokens"]],
        "most": most,
        "longest": pieces["max_input_chars_per_word"],
        "weights": [0, *weigh_sizes(manifest, min(most, len(tower.vocabulary)))],
    }


def weigh_sizes(manifest: Manifest, most: int) -> list[int]:
    """The weight that the quantiser of an index gives each term of a query of 1 to `most` equal terms."""
    rows, columns = np.tril_indices(most)
    pointers = np.searchsorted(rows, np.arange(most + 1))
    queries = CsrRows(np.ones(len(columns), np.float32), columns, pointers, (most, most))
    integers = Quantiser.from_json(manifest.quantiser).queries(queries, manifest.counts.max_impact)
    weights: list[int] = integers.impacts.data[integers.impacts.indptr[:-1]].tolist()
    return weights


# ---- postings


def read_postings(index: Path, vocabulary: Vocabulary) -> tuple[list[str], Any]:
    """The ids of the documents in their order, which is that of equal scores, and impacts as CSR [V, documents]."""
    from scipy import sparse

    vectors = read_vectors(index)
    if unknown := [term for term in vectors.terms if term not in vocabulary.dimension]:
        raise ArtefactError(f"{index}: the term {unknown[0]!r:.80} is not in its vocabulary; index again")
    dimensions = np.array([vocabulary.dimension[term] for term in vectors.terms], np.int64)
    entries = vectors.impacts.tocoo()
    places = dimensions[entries.col], entries.row
    return vectors.ids, sparse.csr_matrix((entries.data, places), shape=(len(vocabulary), len(vectors.ids)))


def pack_postings(impacts: Any) -> Iterator[tuple[int, str]]:
    """Files of postings of a similar size: the first dimension of each, and its lists as text.

    A list is the number of postings, the distances of the documents (the first to -1), and the impacts, as
    `split_numbers`.
    """
    first, size = 0, 0
    pieces: list[np.ndarray] = []
    for dimension in range(impacts.shape[0]):
        postings = slice(*impacts.indptr[dimension : dimension + 2])
        documents = impacts.indices[postings]
        octets = split_numbers(
            np.concatenate([[len(documents)], np.diff(documents, prepend=-1), impacts.data[postings]])
        )
        if pieces and size + len(octets) > RANGE:
            yield first, pack(np.concatenate(pieces))
            first, pieces, size = dimension, [], 0
        pieces.append(octets)
        size += len(octets)
    yield first, pack(np.concatenate(pieces))


def relate_terms(impacts: Any) -> list[list[int]]:
    """For each dimension, those whose impacts over all documents have the greatest cosine with its own, best first."""
    from scipy import sparse

    matrix = impacts.astype(np.float32)
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    few = np.diff(matrix.indptr) < LEAST_DOCUMENTS
    unit = sparse.diags_array(np.where(few, 0, 1 / np.maximum(lengths, 1)).astype(np.float32)) @ matrix
    transposed, offered = unit.T.tocsc(), []
    for begin in range(0, len(few), BATCH):
        cosines = (unit[begin : begin + BATCH] @ transposed).toarray()
        rows = np.arange(len(cosines))
        cosines[rows, begin + rows] = 0
        for row in cosines:
            best = np.argsort(-row, kind="stable")[:OFFERED]
            offered.append(best[row[best] >= LEAST].tolist())
    return offered


# ---- maps


class Grids(NamedTuple):
    """The activations of some terms in each cell of a picture.

    Attributes:
        grid: rows and columns.
        region: left, top, right, bottom of the grid as shares of width and height.
        columns: the dimensions of the terms.
        cells: uint8 [terms, 2 + rows x columns], see `step`.
    """

    grid: list[int]
    region: list[float]
    columns: list[int]
    cells: np.ndarray


def compute_grids(tower: ImageTower, picture: str, dimensions: Sequence[int]) -> Grids:
    """The grids of some terms in a picture."""
    from lexvl_anserini.encoders.parts.images.grounding import compute_patch_activations

    image = open_image(picture)
    values = np.maximum(compute_patch_activations(tower, [image], list(dimensions))[0], 0)  # [rows, columns, terms]
    rows, columns, terms = values.shape
    cells = step(values.reshape(rows * columns, terms).T)
    return Grids([rows, columns], measure_region(tower, image), list(dimensions), cells)


def step(values: np.ndarray) -> np.ndarray:
    """Grids [terms, cells] of values >= 0 as uint8 [terms, 2 + cells].

    The least and the greatest value of a term, as shares of the greatest of all terms in 255 steps; then the cells, in
    7 steps from one to the other.
    """
    greatest = float(values.max(initial=0)) or 1.0
    low = np.floor(values.min(axis=1) / greatest * ENDS)
    high = np.ceil(values.max(axis=1) / greatest * ENDS)
    span = np.maximum(high - low, 1)
    steps = np.rint((values / greatest * ENDS - low[:, None]) / span[:, None] * STEPS)
    return np.column_stack([low, high, steps]).astype(np.uint8)


def pack_grids(grids: Sequence[Grids | None]) -> dict[str, Any]:
    """The grids of some documents as a data file: what the cells are of, and all cells in their order."""
    cells = [picture.cells.ravel() for picture in grids if picture is not None]
    return {
        "of": [
            picture and {"grid": picture.grid, "region": picture.region, "columns": picture.columns}
            for picture in grids
        ],
        "cells": pack(np.concatenate(cells)),
    }
