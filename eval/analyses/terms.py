"""Shows the terms of corpora, of documents and of images: `python -m eval.analyses.terms --shards impacts/demo`.

python -m eval.analyses.terms --shards impacts/a --shards impacts/b --plot terms.png
python -m eval.analyses.terms --shards impacts/demo --doc-id test-00017
python -m eval.analyses.terms --image beach.jpg
python -m eval.analyses.terms --shards impacts/demo --sparsity

Which terms the vectors of a corpus have, and how heavy: a term's mean and largest weight over all documents.

VDR, appendix D: a model that shirks the work of disentangling puts large weights on a few terms, the same for every
document. Then the means of its first 100 terms are large, and these terms have most of all weight. Weights are those of
vectors of unit length (L2), so that models and quantisers compare; a mean counts every document, also those without the
term.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer

from lexvl_anserini.cli import DataDir, Verbose, expand_options, run
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.manifest import Manifest, expect_lexical, read_manifest
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..measures.flops import count_sparsity, encode_shard_queries
from ..report.tables import (
    COUNT,
    FOUR_DECIMALS,
    PLAIN,
    FieldColumn,
    Table,
    format_csv,
    format_percent,
    print_records,
    render,
)
from ..report.term_sheets import JUDGED, draw_clouds, draw_terms, list_judged_terms, list_judged_words
from .classes.class_sets import LISTS, read_rows
from .classes.classification import VOCABULARY, WordSpace, build_dense_space
from .sentence_pairs import list_words

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.records import ImpactDocument, Vocabulary

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.analyses.terms")


# Terms of a corpus (VDR, appendix D), and words of an image by a dense encoder.
FIRST = 100
# Suffixes of clouds.
CLOUDS = (".png", ".svg")
# Columns of a list of captions.
CAPTIONED = ("document", "caption")

TERM = FieldColumn("term", "term")
DOCUMENT_TERMS = (
    FieldColumn("document", "document"),
    FieldColumn("rank", "rank", COUNT),
    TERM,
    FieldColumn("weight", "weight", FOUR_DECIMALS),
)
MEAN = "{:,.2f}".format
SPARSITY = (
    FieldColumn("shards", "shards"),
    *(FieldColumn("documents", "documents", COUNT), FieldColumn("terms/doc", "terms_per_document", MEAN)),
    *(FieldColumn("most", "most_document_terms", COUNT), FieldColumn("dimensions", "document_dimensions", COUNT)),
    *(FieldColumn("queries", "queries", COUNT), FieldColumn("terms/query", "terms_per_query", MEAN)),
    *(FieldColumn("most", "most_query_terms", COUNT), FieldColumn("dimensions", "query_dimensions", COUNT)),
    FieldColumn("FLOPS", "flops", MEAN),
)


class TermStatistic(NamedTuple):
    """A term of a corpus: its rank by the mean, in how many documents it is, and its weight over all documents."""

    shards: str
    rank: int
    term: str
    documents: int
    mean: float
    maximum: float


class TermProfile(NamedTuple):
    """The terms of one folder of shards: how many are used, the first by their means and their share of all weight.

    `active` has the number of documents by their number of terms.
    """

    shards: str
    documents: int
    used: int
    share: float
    first: list[TermStatistic]
    active: Mapping[int, int]


class DocumentTerm(NamedTuple):
    """A term of one document or image, by its weight there."""

    document: str
    rank: int
    term: str
    weight: float


class StoredVectors(NamedTuple):
    """Impact shards that can be read."""

    folder: Path
    manifest: Manifest
    vocabulary: Vocabulary

    def documents(self) -> Iterator[ImpactDocument]:
        """Streams all documents."""
        from lexvl_anserini.shards.reading import read_impacts

        return read_impacts(self.folder, self.manifest, self.vocabulary)


def open_shards(folder: Path) -> StoredVectors:
    """Opens shards."""
    from lexvl_anserini.shards.reading import read_vocabulary

    manifest = read_manifest(folder)
    expect_lexical(folder, manifest.kind, "only vectors of impacts have terms")
    return StoredVectors(folder, manifest, read_vocabulary(folder, manifest))


def measure_terms(stored: StoredVectors, name: str) -> TermProfile:
    """Means, maxima and numbers of terms, in one pass."""
    dimension, size = stored.vocabulary.dimension, len(stored.vocabulary)
    total, largest, within = np.zeros(size), np.zeros(size), np.zeros(size, dtype=np.int64)
    active: Counter[int] = Counter()
    for document in stored.documents():
        count = len(document.vector)
        active[count] += 1
        dims = np.fromiter((dimension[term] for term in document.vector), np.int64, count)
        weights = normalise_weights(document.vector)
        total[dims] += weights
        largest[dims] = np.maximum(largest[dims], weights)
        within[dims] += 1
    if not total.any():
        raise DataError(f"{stored.folder}: no document has a term")
    documents, terms = active.total(), stored.vocabulary.terms
    order = nsmallest(FIRST, np.flatnonzero(within).tolist(), key=lambda dim: (-total[dim], terms[dim]))
    first = [
        TermStatistic(name, rank, terms[dim], int(within[dim]), float(total[dim] / documents), float(largest[dim]))
        for rank, dim in enumerate(order, start=1)
    ]
    share = float(total[order].sum() / total.sum())
    return TermProfile(name, documents, int((within > 0).sum()), share, first, dict(sorted(active.items())))


def normalise_weights(vector: Mapping[str, float]) -> np.ndarray:
    """The weights of a vector at unit length, float64 [terms]."""
    weights = np.fromiter(vector.values(), np.float64, len(vector))
    return weights / (np.linalg.norm(weights) or 1)


def list_document_terms(name: str, vector: Mapping[str, float], most: int | None = None) -> list[DocumentTerm]:
    """The terms of a document, heaviest first; of equal ones the first in alphabetical order."""
    weights = zip(vector, normalise_weights(vector).tolist(), strict=True)
    order = sorted(weights, key=lambda item: (-item[1], item[0]))[:most]
    return [DocumentTerm(name, rank, term, weight) for rank, (term, weight) in enumerate(order, start=1)]


def read_document_terms(stored: StoredVectors, doc_ids: Sequence[str]) -> list[DocumentTerm]:
    """All terms of some documents, in the order of their ids given."""
    chosen = set(doc_ids)
    terms = {
        document.doc_id: list_document_terms(*document[:2])
        for document in stored.documents()
        if document.doc_id in chosen
    }
    if missing := [doc_id for doc_id in doc_ids if doc_id not in terms]:
        raise DataError(f"{stored.folder}: no document {missing[0]!r} among {stored.manifest.counts.documents:,}")
    return [term for doc_id in dict.fromkeys(doc_ids) for term in terms[doc_id]]


def encode_image_terms(
    model: Encoder, images: Sequence[str], batch_size: int = 32, vocabulary: str = VOCABULARY
) -> list[DocumentTerm]:
    """All terms of some images; by a dense encoder the nearest words of a vocabulary, with their cosines."""
    if model.kind == "dense":
        with progress_bar("words", None, "words") as advance:
            return find_nearest_words(build_dense_space(model, vocabulary, batch_size, advance), images)
    rows = model.decode(model.encode_document(images, batch_size))
    return [term for image, row in zip(images, rows, strict=True) for term in list_document_terms(image, dict(row))]


def find_nearest_words(space: WordSpace, images: Sequence[str]) -> list[DocumentTerm]:
    """The first words of each image; of equal weights the first in alphabetical order."""
    return [
        DocumentTerm(image, rank, space.terms[dim], float(row[dim]))
        for image, row in zip(images, space.weights(images), strict=True)
        for rank, dim in enumerate(nsmallest(FIRST, range(len(row)), key=lambda d: (-row[d], space.terms[d])), start=1)
    ]


def build_clouds(terms: Sequence[DocumentTerm]) -> list[tuple[str, dict[str, float]]]:
    """The first terms of each document with their weights, named by the last part of its id or path."""
    clouds: dict[str, dict[str, float]] = {}
    for term in terms:
        if term.rank <= FIRST:
            clouds.setdefault(term.document, {})[term.term] = term.weight
    return [(Path(document).name, weights) for document, weights in clouds.items()]


def choose_documents(stored: StoredVectors, count: int, most: int) -> Iterator[tuple[str, list[DocumentTerm]]]:
    """Streams `count` documents, evenly spaced in their order, with their first terms."""
    documents = stored.manifest.counts.documents
    chosen = set(np.linspace(0, documents - 1, min(count, documents)).round().astype(int).tolist())
    for number, document in enumerate(stored.documents()):
        if number in chosen:
            yield document.doc_id, list_document_terms(document.doc_id, document.vector, most)


def read_captions(path: Path) -> dict[str, list[str]]:
    """The words of one caption per document, of a list (document, caption)."""
    if path.suffix.lower() not in LISTS:
        raise UsageError(
            f"--captions {path}: expected a list, {' or '.join(LISTS)}, with columns {', '.join(CAPTIONED)}"
        )
    captions: dict[str, list[str]] = {}
    for where, (document, caption) in read_rows(path, CAPTIONED):
        if document in captions:
            raise DataError(f"{where}: a second caption for document {document!r}; expected one")
        captions[document] = list_words(caption)
    return captions


def describe_terms(stored: StoredVectors, name: str) -> TermProfile:
    """The terms of shards, with a line in the log."""
    profile = measure_terms(stored, name)
    mean = sum(terms * count for terms, count in profile.active.items()) / profile.documents
    log.info(
        "%s: %d documents of %.1f terms on average; of %d terms the first %d have %.1f %% of all weight",
        *(profile.shards, profile.documents, mean),
        *(profile.used, len(profile.first), 100 * profile.share),
    )
    return profile


def build_term_table(profiles: Sequence[TermProfile]) -> Table:
    """One row per term of each corpus, by its mean weight."""
    documents = {profile.shards: profile.documents for profile in profiles}
    columns = (
        FieldColumn("shards", "shards"),
        FieldColumn("rank", "rank", PLAIN),
        TERM,
        FieldColumn("documents %", lambda term: format_percent(term.documents / documents[term.shards]), PLAIN),
        FieldColumn("mean", "mean", FOUR_DECIMALS),
        FieldColumn("maximum", "maximum", FOUR_DECIMALS),
    )
    return Table.make_columns((term for profile in profiles for term in profile.first), columns)


PLOT = "Draw boxes of the first terms' weights, and terms per document, as PNG."
CLOUD = "Draw a cloud of the terms of each corpus, document or image, as PNG or SVG."
EXPORT = "Write the first 5 terms of some documents as CSV, for people to judge."
CAPTIONS = (
    "A list (.tsv or .csv: document, caption): --export writes words of captions too, and beside it the questions "
    "which side is better."
)
SHARDS = "Folder that encode wrote, of impacts; repeatable to compare corpora."
SIDES = "Count the terms of documents and queries, and those that they share (FLOPS)."


@dataclass(frozen=True)
class DrawingOptions:
    """Files of drawings."""

    plot: Annotated[Path | None, typer.Option(help=PLOT)] = None
    cloud: Annotated[Path | None, typer.Option(help=CLOUD)] = None

    def check(self) -> None:
        """Raises UsageError for a file that cannot be drawn, before anything is read."""
        if self.plot and self.plot.suffix.lower() != ".png":
            raise UsageError(f"--plot {self.plot}: draws PNG only; give the file the suffix .png")
        if self.cloud and self.cloud.suffix.lower() not in CLOUDS:
            raise UsageError(f"--cloud {self.cloud}: draws PNG and SVG; give the file the suffix .png or .svg")


@dataclass(frozen=True)
class SheetOptions:
    """Sheets for people to judge terms."""

    export: Annotated[Path | None, typer.Option(help=EXPORT)] = None
    documents: Annotated[
        int, typer.Option(min=1, help="Documents that --export writes, evenly spaced in the order of the shards.")
    ] = 20
    captions: Annotated[Path | None, typer.Option(help=CAPTIONS)] = None

    def check(self) -> None:
        """Raises UsageError for captions without an export."""
        if self.captions and not self.export:
            raise UsageError("--captions names captions for --export FILE.csv")

    def write(self, stored: StoredVectors) -> None:
        """Writes the sheets that are requested."""
        if self.export is None:
            return
        chosen = choose_documents(stored, self.documents, JUDGED)
        if self.captions is None:
            _write_rows(self.export, list_judged_terms(chosen))
            return
        words, preferences = list_judged_words(chosen, read_captions(self.captions))
        _write_rows(self.export, words)
        _write_rows(self.export.with_name(f"{self.export.stem}.preferences{self.export.suffix}"), preferences)


def _write_rows(path: Path, rows: Sequence[NamedTuple]) -> None:
    with atomic_write(path) as out:
        out.write(format_csv(rows).encode())


@expand_options
def command(
    *,
    shards: Annotated[list[Path] | None, typer.Option(help=SHARDS)] = None,
    doc_ids: Annotated[
        list[str] | None, typer.Option("--doc-id", help="Show the terms of this document; repeatable.")
    ] = None,
    images: Annotated[
        list[str] | None, typer.Option("--image", help="Encode this image and show its terms; repeatable.")
    ] = None,
    sparsity: Annotated[bool, typer.Option("--sparsity", help=SIDES)] = False,
    topics: options.Topics = None,
    data_dir: DataDir = None,
    encoder: options.ImageEncoderOptions,
    vocabulary: options.Words = VOCABULARY,
    drawings: DrawingOptions,
    sheets: SheetOptions,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Show the terms of a corpus with the largest mean weights, those of documents or images, or how many there are.

    Of a dense encoder the terms of an image are the words of a vocabulary that are nearest to it, by their cosines.

    Example: python -m eval.analyses.terms --shards impacts/demo
    """
    single = bool(images or doc_ids)
    if bool(shards) == bool(images) or (images and (doc_ids or sheets.export)) or (drawings.plot and single):
        raise UsageError("give --shards (with --plot and --export, or with --doc-id), or --image")
    drawings.check()
    sheets.check()
    folders = shards or []
    if len(folders) > 1 and (doc_ids or sheets.export):
        raise UsageError(f"--doc-id and --export read one folder of shards, not {len(folders)}")
    if sparsity:
        if single or drawings.plot or drawings.cloud or sheets.export:
            raise UsageError("--sparsity reads --shards, and draws and exports nothing")
        encoded = (encode_shard_queries(f, topics, data_dir, encoder.checkpoint, encoder.device)[0] for f in folders)
        rows = [count_sparsity(f, (q.vector for q in own)) for f, own in zip(folders, encoded, strict=True)]
        print_records(rows, SPARSITY, output_format)
        return
    opened = [open_shards(folder) for folder in folders]
    if opened:
        sheets.write(opened[0])
    if doc_ids:
        show_items(read_document_terms(opened[0], doc_ids), drawings, output_format)
    elif images:
        terms = encode_image_terms(encoder.load(), images, encoder.batch_size, vocabulary)
        show_items(terms, drawings, output_format)
    else:
        show_corpora(opened, drawings, output_format)


def show_items(terms: Sequence[DocumentTerm], drawings: DrawingOptions, output_format: str) -> None:
    """Prints the terms of documents or images, and draws their clouds."""
    if drawings.cloud:
        draw_clouds(build_clouds(terms), drawings.cloud)
    print_records(terms, DOCUMENT_TERMS, output_format)


def show_corpora(opened: Sequence[StoredVectors], drawings: DrawingOptions, output_format: str) -> None:
    """Prints the first terms of corpora, and draws them; folders of one name are named by their paths."""
    names = [stored.folder.name for stored in opened]
    distinct = names if len(set(names)) == len(names) else [str(stored.folder) for stored in opened]
    profiles = [describe_terms(stored, name) for stored, name in zip(opened, distinct, strict=True)]
    if drawings.plot:
        draw_terms(profiles, drawings.plot)
    if drawings.cloud:
        clouds = [(profile.shards, {term.term: term.mean for term in profile.first}) for profile in profiles]
        draw_clouds(clouds, drawings.cloud)
    sys.stdout.write(render(build_term_table(profiles), profiles, output_format))


if __name__ == "__main__":
    run(command)
