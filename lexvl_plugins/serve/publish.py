"""The command `lexvl publish`: an index -> a folder of static files that searches in a browser, without a server.

    SITE/index.html, page.js, page.css, icon.svg
    SITE/data/site.js          what the page shows at first, and where the other data are
    SITE/data/words.js         the tokenizer, terms
    SITE/data/related.js       terms to offer
    SITE/data/postings-N.js    lists of a range of terms
    SITE/data/documents-N.js   PART documents: id, title, text, the suffix of the picture's file
    SITE/data/grids-N.js       their maps
    SITE/pictures/N.jpg        thumbnails, by a document's number in the order of ids
    SITE/site.json             marks the folder, so that another site may replace it

Data are scripts, which a page loads from a disk too, where it may not read files. Nothing of it names a
place on this machine, and the pictures have pixels alone.
"""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import orjson
import typer

from lexvl_anserini import __version__, cli
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.tokens import list_token_strings
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.resident.packing import read_vectors
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import new_folder, refuse_inside, write_json
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows, Quantiser
from lexvl_anserini.searching.search import MovedCheckpoint
from lexvl_plugins.serve.answering import describe_index, measure_region
from lexvl_plugins.serve.documents import LOSSLESS, UNKNOWN, ShownDocument, scale
from lexvl_plugins.serve.indexes import LiveIndex, ServedIndex, name_indexes, open_live

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
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
        raise UsageError(f"encoder {model.name!r}: expected one whose queries are bags of words (--set mode=alpha)")
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
        parts = [len(documents)], np.diff(documents, prepend=-1), impacts.data[postings]
        octets = split_numbers(np.concatenate(parts))
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


# What cells are of: rows and columns, the region as shares of width and height, the terms' dimensions; and the cells,
# uint8 [terms, 2 + rows x columns], see `step`.
Grids = tuple[dict[str, list[Any]], np.ndarray]


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


FORMAT = "lexvl-site/1"
MARK = "site.json"
DATA = "data"
PICTURES = "pictures"

# The function of the page that a data file calls with its name and content.
CALLED = "lexvl"

# Documents of a file.
PART = 256

# The scripts of the page in the order in which they are joined.
SCRIPTS = ("expressions.js", "static.js", "view.js", "page.js")

# Suffixes of pictures by media type.
SUFFIXES = {"image/jpeg": "jpg", "image/png": "png"}


@dataclass(frozen=True)
class Publication:
    """What a site shows of an index."""

    example: Annotated[
        list[str] | None, typer.Option(help="A query that the page offers; repeatable. Default the corpus's own.")
    ] = None
    side: Annotated[int, typer.Option(min=32, max=2048, help="Pixels of a thumbnail's longer side.")] = 320
    map_terms: Annotated[
        int, typer.Option(min=0, max=255, help="Terms of a picture with a map of where they are; 0 for no maps.")
    ] = 10
    replace_ids: Annotated[
        bool, typer.Option("--replace-ids", help="Numbers in the place of document ids, which may be file names.")
    ] = False


def publish(
    served: ServedIndex,
    site: Path,
    publication: Publication = Publication(),
    overwrite: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes the site of an index, whole or not at all; returns its counts and bytes."""
    manifest = index_manifest(served.path)
    expect_lexical(served.path, manifest.kind, "a site has postings of terms")
    if manifest.fields:
        raise UsageError(f"{served.path}: an index of the fields {', '.join(manifest.fields)}; a site has one encoder")
    _check_place(site, served.path, overwrite)
    live = open_live(served)
    try:
        words = describe_words(live.model, manifest)
        if live.corpus.problem:
            raise DataError(f"{served.path}: {live.corpus.problem}")
        if live.terms and tuple(live.terms) != live.model.vocabulary.terms:
            raise ArtefactError(f"{served.path}: its vocabulary is not that of its encoder's queries")
        with new_folder(site) as part:
            return _Site(part, live, publication).write(words, progress)
    finally:
        live.close()


def find_bag_mode(encoder: str) -> dict[str, str]:
    """The options with which the queries of an encoder are bags of words, where it has such a mode."""
    known = list_options(encoder) if encoder in CARDS else ()
    return {"mode": "alpha"} if any(option.name == "mode" for option in known) else {}


def _check_place(site: Path, index: Path, overwrite: bool) -> None:
    """Refuses a folder that must not be replaced."""
    refuse_inside(site, index, "the files of the index")
    if not site.exists() or (site.is_dir() and not any(site.iterdir())):
        return
    if not (site / MARK).is_file():
        raise ArtefactError(f"{site}: holds other files than a site; name a folder that is empty or not there")
    if not overwrite:
        raise ArtefactError(f"{site}: exists; --overwrite replaces it")


class _Site:
    """A site while it is written into a folder."""

    def __init__(self, folder: Path, live: LiveIndex, publication: Publication):
        self.folder, self.live, self.publication = folder, live, publication
        self.ids, self.impacts = read_postings(live.served.path, live.model.vocabulary)
        self.map_tower = live.map_tower if publication.map_terms > 0 else None
        # Documents whose pictures a page without a query shows: their ids, then ids, numbers and suffixes.
        self.sampled = frozenset(live.corpus.sample())
        self.samples: list[tuple[str, int, str]] = []
        self.sizes = dict.fromkeys(("postings", "documents", "maps", "words", "page", "pictures"), 0)

    def write(self, words: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Writes all files; returns their counts and sizes."""
        (self.folder / DATA).mkdir()
        (self.folder / PICTURES).mkdir()
        starts = []
        for number, (first, text) in enumerate(pack_postings(self.impacts)):
            starts.append(first)
            self._write_part("postings", f"postings-{number}", text)
        self._write_part("words", "words", {**words, "terms": self.live.model.vocabulary.terms})
        self._write_part("words", "related", relate_terms(self.impacts))
        for begin in range(0, len(self.ids), PART):
            numbers = range(begin, min(begin + PART, len(self.ids)))
            self._write_documents(numbers)
            progress(len(numbers))
        maps = self.map_tower is not None and bool(self.sampled)
        hidden = {"corpus": "", "fields": [], "sends": False, "maps": maps}
        shown = describe_index(self.live, "").model_copy(update=hidden)
        description = {"indexes": [shown.model_dump()], "version": __version__, "part": PART, "starts": starts}
        examples = list(self.publication.example or self.live.examples)
        self._write_part("page", "site", {**description, "examples": examples, "samples": self.samples})
        self.sizes["page"] += write_page(self.folder)
        write_json(self.folder / MARK, {"format": FORMAT, "documents": len(self.ids), "version": __version__})
        sizes = {f"{what}, bytes": size for what, size in self.sizes.items()}
        sizes["bytes"] = sum(self.sizes.values())
        return {"documents": len(self.ids), "postings": self.impacts.nnz, **sizes}

    def _write_part(self, what: str, name: str, content: Any) -> None:
        """Writes the data file `name`, and counts its bytes."""
        script = b"%s(%s,%s)\n" % (CALLED.encode(), orjson.dumps(name), orjson.dumps(content))
        (self.folder / DATA / f"{name}.js").write_bytes(script)
        self.sizes[what] += len(script)

    def _write_documents(self, numbers: range) -> None:
        """Writes some documents, their pictures and maps."""
        rows: list[list[str]] = []
        maps: list[Grids | None] = []
        part = self.impacts[:, numbers.start : numbers.stop].tocsc()
        for at, number in enumerate(numbers):
            doc_id = self.ids[number]
            document = self.live.corpus.documents.get(doc_id, UNKNOWN)
            suffix = self._write_picture(number, doc_id, document)
            shown = str(number + 1) if self.publication.replace_ids else doc_id
            rows.append([shown, document.title, document.text, suffix])
            if suffix and doc_id in self.sampled:
                self.samples.append((shown, number, suffix))
            maps.append(self._draw_grids(document, part[:, [at]]) if suffix else None)
        number = numbers.start // PART
        self._write_part("documents", f"documents-{number}", rows)
        if any(maps):
            cells = pack(np.concatenate([grids[1].ravel() for grids in maps if grids is not None]))
            self._write_part("maps", f"grids-{number}", {"of": [grids and grids[0] for grids in maps], "cells": cells})

    def _write_picture(self, number: int, doc_id: str, document: ShownDocument) -> str:
        """Writes the thumbnail of a document; returns the suffix of its file, empty without a picture."""
        if document.picture is None:
            return ""
        image = open_image(self.live.corpus.find_picture(doc_id))
        image.thumbnail((self.publication.side, self.publication.side))
        # A small one is PNG or, where that has fewer bytes, JPEG; both have pixels alone.
        formats = (scale(image, self.publication.side, lossless) for lossless in (LOSSLESS, 0))
        picture = min(formats, key=lambda encoded: len(encoded.content))
        suffix = SUFFIXES[picture.media_type]
        (self.folder / PICTURES / f"{number}.{suffix}").write_bytes(picture.content)
        self.sizes["pictures"] += len(picture.content)
        return suffix

    def _draw_grids(self, document: ShownDocument, impacts: Any) -> Grids | None:
        """The maps of a document's picture, of its heaviest terms."""
        order = sorted(zip((-impacts.data).tolist(), impacts.indices.tolist(), strict=True))
        dimensions = [dimension for _, dimension in order[: self.publication.map_terms]]
        if self.map_tower is None or document.picture is None or not dimensions:
            return None
        from lexvl_anserini.encoders.parts.images.grounding import compute_patch_activations

        image = open_image(document.picture)
        values = np.maximum(compute_patch_activations(self.map_tower, [image], dimensions)[0], 0)
        rows, columns, terms = values.shape
        region = measure_region(self.map_tower, image)
        return {"grid": [rows, columns], "region": region, "columns": dimensions}, step(values.reshape(-1, terms).T)


def write_page(site: Path) -> int:
    """Writes the files of the page, its scripts as one; returns their bytes."""
    page = files("lexvl_plugins.serve").joinpath("page")
    html = page.joinpath("index.html").read_text(encoding="utf-8")
    classic = html.replace('<script type="module" src="page.js">', '<script defer src="page.js">')
    if classic == html:
        raise AssertionError("index.html names its script in another way")
    contents = {
        "index.html": classic.encode(),
        "page.js": join_scripts(page.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS).encode(),
        "page.css": page.joinpath("page.css").read_bytes(),
        "icon.svg": page.joinpath("icon.svg").read_bytes(),
    }
    for name, content in contents.items():
        (site / name).write_bytes(content)
    return sum(map(len, contents.values()))


def join_scripts(modules: Iterable[str]) -> str:
    """Modules as one script that a browser runs from a disk too, where it refuses modules."""
    plain = (re.sub(r"^(import .*\n|export (?=function|class|const))", "", module, flags=re.M) for module in modules)
    return '"use strict";\n(() => {\n' + "".join(plain) + "})();\n"


@cli.expand_options
def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index.")],
    site: Annotated[Path, typer.Argument(help="Folder of the site; one with other files is refused.")],
    name: Annotated[str | None, typer.Option(help="Title of the page; default that of the index.")] = None,
    publication: Publication = Publication(),
    settings: cli.Settings = None,
    checkpoint: MovedCheckpoint = None,
    data_dir: cli.DataDir = None,
    device: cli.Device = "auto",
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Publish an index as static files: its search page works on any web server, and from a disk.

    Queries are words, as search --set mode=alpha reads them, or terms with signs, with the same hits and scores.

    Example: python -m lexvl_plugins.serve.publish indexes/demo sites/demo
    """
    started = time.perf_counter()
    options = {**find_bag_mode(index_manifest(index).encoder.name), **cli.parse_settings(settings or ())}
    [served] = name_indexes([index], [checkpoint] if checkpoint else [], device, data_dir, options)
    with cli.progress_bar(f"publish {index}", None, "documents") as progress:
        rows = publish(replace(served, name=name or served.name), site, publication, overwrite, progress)
    rows = {"site": str(site / "index.html"), **rows, "seconds": round(time.perf_counter() - started, 2)}
    cli.print_rows(rows, style)


if __name__ == "__main__":
    cli.run(command)
