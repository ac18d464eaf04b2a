"""The demonstration: the whole line on the drawn images of the demo, in both directions, in one process; then photos.

encode -> index -> check -> search -> measure -> explain -> contact sheet

    DIR/impacts/<name>, DIR/indexes/<name>    of each direction and encoder
    DIR/runs/<name>.trec                      of each system
    DIR/contact-sheet.png
    DIR/photos.png                            real photos: typed queries, first hits, terms and maps

Each step writes its files whole or finds them finished, so a second call in the same folder only prints.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from lexvl_eval.image_text import caption_report
from lexvl_eval.measures.inputs import JudgementSource, describe_run
from lexvl_eval.report.answers import own_terms, strips_of_queries, with_maps
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.report.tables import labelled
from lexvl_eval.sheet import DEFAULT_TERMS, encoder_of, shown_of_run

from lexvl_anserini.cli import DataDir, Device, Overwrite, Verbose, expanded, progress_bar, run
from lexvl_anserini.data.corpora.demo import demo_files
from lexvl_anserini.data.corpora.karpathy import read_karpathy
from lexvl_anserini.encoders.cards import direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.explain import to_text
from lexvl_anserini.ground.errors import MissingExtra
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.queries.query_source import topic_source
from lexvl_anserini.runs.trec import ensure_run
from lexvl_anserini.searching.building import build_index, check_index
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.retrieval import IndexSearch
from lexvl_anserini.searching.searcher import EncoderChanges
from lexvl_anserini.searching.shared_terms import explain

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.photos.demo")

SPLIT = "test"
HITS = 100
# Documents and topics of a scene, which has one image and five captions.
PER_SCENE = {"text-to-image": (1, 5), "image-to-text": (5, 1), "text-to-text": (1, 1)}
# Documents of each explained query, and terms of each document.
EXPLAINED_HITS = 3
EXPLAINED_TERMS = 6


class IndexedDemo(NamedTuple):
    """The demo in one direction, encoded by one encoder: shards and an index of this name."""

    name: str
    direction: str
    encoder: str
    checkpoint: str | None = None
    checked: bool = False


class System(NamedTuple):
    """One row of the table: what was searched (an index), and with which options of its encoder."""

    label: str
    run: str
    searched: str
    settings: Mapping[str, Any] = MappingProxyType({})


INDEXES = (
    IndexedDemo("text-to-image.vdr-crossmodal", "text-to-image", "vdr-crossmodal", "demo-vdr", checked=True),
    IndexedDemo("text-to-image.dense-crossmodal", "text-to-image", "dense-crossmodal", "demo-dense"),
    IndexedDemo("image-to-text.vdr-crossmodal", "image-to-text", "vdr-crossmodal", "demo-vdr", checked=True),
    IndexedDemo("image-to-text.dense-crossmodal", "image-to-text", "dense-crossmodal", "demo-dense"),
    IndexedDemo("captions.bm25", "text-to-text", "bm25"),
)

SHOWN = System("VDR, Lucene", "text-to-image.vdr-crossmodal", "text-to-image.vdr-crossmodal")
SYSTEMS = (
    SHOWN,
    System("dense twin, FAISS", "text-to-image.dense-crossmodal", "text-to-image.dense-crossmodal"),
    System("VDR alpha, Lucene", "text-to-image.alpha", "text-to-image.vdr-crossmodal", {"mode": "alpha"}),
    System("VDR, Lucene", "image-to-text.vdr-crossmodal", "image-to-text.vdr-crossmodal"),
    System("dense twin, FAISS", "image-to-text.dense-crossmodal", "image-to-text.dense-crossmodal"),
    System("BM25 over captions", "captions.bm25", "captions.bm25"),
)

# Photos that installed packages contain, and what is typed to find them; none has a caption or a judgement.
SAMPLES = "samples"
PHOTOS = IndexedDemo(f"{SAMPLES}.vdr-crossmodal", "text-to-image", "vdr-crossmodal", "photos-vdr")
PHOTO_QUERIES = (
    "a cat looking at the camera",
    "a cup of coffee on a table",
    "an orange flower",
    "a woman in an orange suit",
    "a building surrounded by trees",
)
PHOTO_HITS = 4

QUERIES = ("a red boat under the moon", "two dogs on the beach", "a teddy bear in a bedroom")

TITLE = "demo test split: {:,} drawn scenes, {:,} captions; VDR and its dense twin were trained on other scenes"
NOTES = (
    "queries of alpha are the bare words of a caption: no text encoder at query time (ms/query is the index alone)",
    "BM25 reads no images: the fifth caption of each image is the query, its other four captions are the document",
)


@dataclass(frozen=True)
class DemoOptions:
    """Where the demonstration writes and reads, on which device, and whether it replaces files of other requests."""

    output: Annotated[Path, typer.Option(help="Folder to write; a second call finds its files and only prints.")] = (
        Path("lexvl-demo")
    )
    data_dir: DataDir = None
    device: Device = "auto"
    overwrite: Overwrite = False

    def shards_of(self, name: str) -> Path:
        """The folder of shards."""
        return self.output / "impacts" / name

    def index_of(self, name: str) -> Path:
        """The folder of an index."""
        return self.output / "indexes" / name

    def opened(self, name: str) -> Index:
        """An index that was built."""
        return Index(self.index_of(name), index_manifest(self.index_of(name)))

    def run_of(self, system: System) -> Path:
        """The run of a system."""
        return self.output / "runs" / f"{system.run}.trec"


class Step(NamedTuple):
    """One step: what it does; the function that does it and returns a text for the end; what its progress counts."""

    what: str
    work: Callable[[DemoOptions, Progress], str]
    total: int | None = None
    unit: str = "documents"


def steps() -> Iterator[Step]:
    """The steps, in their order."""
    scenes = scene_count()
    topics = {}
    for demo in INDEXES:
        documents, topics[demo.name] = (scenes * number for number in PER_SCENE[demo.direction])
        yield Step(f"encode {demo.name}", partial(encode, demo), documents)
        yield Step(f"index {demo.name}", partial(index, demo), documents)
        if demo.checked:
            yield Step(f"check {demo.name}", partial(check, demo), documents)
    for system in SYSTEMS:
        yield Step(f"search {system.run}", partial(search, system), topics[system.searched], "topics")
    yield Step("measure", measure)
    for query in QUERIES:
        yield Step(f'explain "{query}"', partial(explain_query, query))
    yield Step("draw the contact sheet", draw_contact_sheet)
    yield Step("search real photos", search_photos)


def scene_count() -> int:
    """The number of scenes that are in the package."""
    captions, _ = demo_files(SPLIT)
    return sum(1 for _ in read_karpathy(captions))


def encode(demo: IndexedDemo, options: DemoOptions, progress: Progress) -> str:
    """Encodes the demo's documents of a direction into shards."""
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.shards.writing import write_impacts

    name, direction = demo.encoder, demo.direction
    dataset = load_dataset("demo", SPLIT, options.data_dir, direction=direction)
    model = load_encoder(name, demo.checkpoint, device=options.device, **direction_option(name, direction))
    write_impacts(dataset, model, options.shards_of(demo.name), overwrite=options.overwrite, progress=progress)
    return ""


def index(demo: IndexedDemo, options: DemoOptions, progress: Progress) -> str:
    """Builds the index of the documents."""
    name = demo.name
    build_index(options.shards_of(name), options.index_of(name), overwrite=options.overwrite, progress=progress)
    return ""


def check(demo: IndexedDemo, options: DemoOptions, progress: Progress) -> str:
    """Compares an index with its shards."""
    check_index(options.index_of(demo.name), options.shards_of(demo.name), progress)
    return ""


def search(system: System, options: DemoOptions, progress: Progress) -> str:
    """Searches all topics and writes the run."""
    opened = options.opened(system.searched)
    searching = IndexSearch(opened, EncoderChanges(options=system.settings, device=options.device))
    source = topic_source(None, opened.path, opened.manifest, options.data_dir, None)
    request = searching.run_manifest(source, HITS, source.remove_query, strict_scores=False, output_format="trec")
    run_file = options.run_of(system)
    ensure_run(run_file, request, options.overwrite, lambda: searching.write(source, request, run_file, progress))
    return ""


def measure(options: DemoOptions, progress: Progress) -> str:
    """Measures all runs; returns the table."""
    cards = labelled([describe_run(options.run_of(system)) for system in SYSTEMS], [system.label for system in SYSTEMS])
    scenes, captions = (scene_count() * number for number in PER_SCENE["text-to-image"])
    title = TITLE.format(scenes, captions)
    return "\n".join((title, caption_report(cards, JudgementSource()).removesuffix("\n"), *NOTES))


def explain_query(query: str, options: DemoOptions, progress: Progress) -> str:
    """Explains the scores of a query's first documents; returns the explanations."""
    explanations = explain(options.index_of(SHOWN.searched), query, hits=EXPLAINED_HITS, device=options.device)
    return "\n".join((f'"{query}"', "\n\n".join(to_text(explanation, EXPLAINED_TERMS) for explanation in explanations)))


def draw_contact_sheet(options: DemoOptions, progress: Progress) -> str:
    """Draws three topics with their first images; returns where the sheet and the images are."""
    sheet = options.output / "contact-sheet.png"
    run_file, opened = options.run_of(SHOWN), options.opened(SHOWN.searched)
    shown = shown_of_run(
        run_file, opened, encoder_of(opened, run_file, device=options.device), data_dir=options.data_dir
    )
    draw_sheet(shown, sheet, DEFAULT_TERMS)
    return f"document ID is the image ID.png in {demo_files(SPLIT)[1]}\nqueries, their first images and terms: {sheet}"


def search_photos(options: DemoOptions, progress: Progress) -> str:
    """Encodes the sample photos and draws queries with their first photos; returns the photos' terms and the file."""
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.shards.writing import write_impacts

    try:
        model = load_encoder(PHOTOS.encoder, PHOTOS.checkpoint, device=options.device)
    except MissingExtra as missing:
        return f"no real photos: {missing}"
    dataset, shards, sheet = load_dataset(SAMPLES), options.shards_of(PHOTOS.name), options.output / "photos.png"
    # Which photos there are depends on the packages that are installed now.
    write_impacts(dataset, model, shards, overwrite=True)
    build_index(shards, options.index_of(PHOTOS.name), overwrite=True)
    strips = strips_of_queries(dataset, options.opened(PHOTOS.name), model, PHOTO_QUERIES, PHOTO_HITS)
    draw_sheet(with_maps(strips, model), sheet, DEFAULT_TERMS, maps=True)
    terms = own_terms(model, list(dataset.documents()))
    width = max(map(len, terms))
    return "\n".join(
        (
            f"{len(terms)} photos of installed packages, and their first terms by {PHOTOS.checkpoint}:",
            *(f"  {doc_id:{width}}  {' '.join(first)}" for doc_id, first in terms.items()),
            f"queries, their first photos, terms, and maps of where the terms are: {sheet}",
        )
    )


def done(step: Step, number: int, of: int, options: DemoOptions) -> str:
    """Does one step, with a bar and then a line of what it was and how long it took; returns its text."""
    started = time.perf_counter()
    with progress_bar(step.what, step.total, step.unit) as progress:
        text = step.work(options, progress)
    log.info("%2d/%d  %-45s %6.1f s", number, of, step.what, time.perf_counter() - started)
    return text


@expanded
def command(options: DemoOptions, verbose: Verbose = False) -> None:
    """Show everything on drawn images: encode, index, check, search, measure, explain, and draw a contact sheet.

    It needs no download and some minutes on 2 cores.

    Example: python -m lexvl_plugins.photos.demo --output lexvl-demo
    """
    started = time.perf_counter()
    todo = list(steps())
    with exclusive(options.output):
        texts = [done(step, number, len(todo), options) for number, step in enumerate(todo, start=1)]
    for text in filter(None, texts):
        typer.echo(f"\n{text}")
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {options.output}/")


if __name__ == "__main__":
    run(command)
