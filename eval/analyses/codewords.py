"""Draws what single terms stand for: the images and the words of captions in which they are strongest (FDT, figure 4).

python -m eval.analyses.codewords --term fdt05675 --corpus coco/val --checkpoint FOLDER --output codewords.png

The value of a term in a grid cell of an image or at a token of a text is its logit there, before pooling: equations 4
and 6 of FDT, up to a constant. An image has the largest value of its cells, a token the largest of all places where it
occurs; the map of an image has all its cells. Works with every lexical model that pools over patches and over tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from lexvl_anserini.cli import DataDir, Style, Verbose, corpus_names, expand_options, print_rows, run
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.progress import Progress, progress_bar, silent
from lexvl_anserini.ground.records import Document

from .. import options
from ..report.answers import make_item, own_terms
from ..report.strips import Cell, Item, Strip, draw_sheet

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder


@expand_options
def command(
    terms: Annotated[list[str], typer.Option("--term", help="A term of the encoder's vocabulary; repeatable.")],
    corpus: Annotated[
        str, typer.Option(help="Images, and their captions if it has some: flickr8k/val.", autocompletion=corpus_names)
    ],
    encoder: options.ImageEncoderOptions,
    images: Annotated[int, typer.Option(min=1, help="Images that are read, the first of the corpus.")] = 1000,
    output: Annotated[Path, typer.Option(help="PNG to write.")] = Path("codewords.png"),
    data_dir: DataDir = None,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Draw, for each term, the images and the words of captions where it is strongest.

    Example: python -m eval.analyses.codewords --term dog --term red --corpus flickr8k/val
    """
    from lexvl_anserini.data.dataset import load_dataset

    dataset = load_dataset(corpus, data_dir=data_dir, direction="text-to-image")
    model = encoder.load()
    with progress_bar("images", None, "images") as advance:
        strips = build_term_strips(model, dataset, terms, images, advance)
    draw_sheet(strips, output, 0, maps=True)
    words = {strip.query.name: strip.query.text for strip in strips}
    print_rows({**words, "sheet": str(output), "bytes": output.stat().st_size}, style)


# Images, and distinct tokens, that are shown of each term.
SHOWN = 5

# Images whose maps, and texts whose tokens, are in memory together.
IMAGES_AT_ONCE, TEXTS_AT_ONCE = 64, 512


def build_term_strips(
    model: Encoder, dataset: Dataset, terms: Sequence[str], images: int, progress: Progress = silent
) -> list[Strip]:
    """One strip per term: its first tokens, and the images where it is strongest, with their maps."""
    from lexvl_anserini.encoders.parts.images.grounding import compute_patch_logits, image_side, overlay

    vocabulary, tower = model.vocabulary, image_side(model)
    if missing := [term for term in terms if term not in vocabulary.dimension]:
        raise UsageError(f"{missing[0]!r} is no term of {model.name}; its terms are such as {vocabulary[0]!r}")
    dims = [vocabulary.dimension[term] for term in terms]
    documents = list(islice((document for document in dataset.documents() if document.image), images))
    if not documents:
        raise DataError(f"{dataset.name}: no images in it")
    heaviest: list[list[tuple[float, int, np.ndarray]]] = [[] for _ in dims]
    for start in range(0, len(documents), IMAGES_AT_ONCE):
        piece = [tower.read(document) for document in documents[start : start + IMAGES_AT_ONCE]]
        maps = compute_patch_logits(tower, piece, dims)  # [n, grid, grid, terms]
        for column, best in enumerate(heaviest):
            values = maps[..., column].max(axis=(1, 2))
            best.extend((float(value), start + n, maps[n, ..., column]) for n, value in enumerate(values))
            best[:] = nlargest(SHOWN, best, key=lambda one: (one[0], -one[1]))
        progress(len(piece))
    words = find_strongest_tokens(model, collect_captions(dataset, documents), dims)
    shown = {number for best in heaviest for _, number, _ in best}
    own = own_terms(model, [documents[number] for number in sorted(shown)])
    strips = []
    for term, best, tokens in zip(terms, heaviest, words, strict=True):
        cells = []
        for value, number, grid in best:
            item = make_item(documents[number])
            assert item.image is not None
            drawn = overlay(item.image, tower.pixels.region(item.image.size), grid)
            cells.append(Cell(item._replace(image=drawn), value, False, (), own[documents[number].doc_id]))
        strips.append(Strip(Item(term, None, ", ".join(tokens) or term), cells))
    return strips


def collect_captions(dataset: Dataset, documents: Iterable[Document]) -> list[str]:
    """The captions of images: their own texts, or the topics that they are relevant to; empty without captions."""
    chosen = list(documents)
    if texts := [document.text for document in chosen if document.text]:
        return texts
    ids = {document.doc_id for document in chosen}
    try:
        judged = {qrel.query_id for qrel in dataset.qrels() if qrel.doc_id in ids and qrel.relevance > 0}
    except DataError:  # images without captions
        return []
    return [topic.text for topic in dataset.topics() if topic.query_id in judged and topic.text]


def find_strongest_tokens(model: Encoder, texts: Sequence[str], dims: Sequence[int]) -> list[list[str]]:
    """Per dimension, the tokens of the texts with its largest values, each token once."""
    from lexvl_anserini.encoders.parts.images.grounding import compute_token_logits

    best: list[dict[str, float]] = [{} for _ in dims]
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        for token, values in compute_token_logits(model, texts[start : start + TEXTS_AT_ONCE], dims):
            for own, value in zip(best, values.tolist(), strict=True):
                if value > own.get(token, -np.inf):
                    own[token] = value
    return [nlargest(SHOWN, own, key=lambda token: own[token]) for own in best]


if __name__ == "__main__":
    run(command)
