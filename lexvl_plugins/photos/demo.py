"""The demonstration: the whole line on the drawn images of the demo, in both directions, in one process; then photos.

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
from lexvl_eval.image_text import render_captions
from lexvl_eval.measures.inputs import JudgementSource, describe_run, label_runs
from lexvl_eval.report.answers import make_query_strips, own_terms, with_maps
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_TERMS, load_run_strips, load_sheet_encoder

from lexvl_anserini.cli import DataDir, Device, Overwrite, Verbose, expand_options, run
from lexvl_anserini.data.corpora.captioned import list_demo_files, read_karpathy
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.cards import make_direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.explain import to_text
from lexvl_anserini.ground.errors import MissingExtra
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.progress import Progress, progress_bar
from lexvl_anserini.queries.query_source import find_topic_source
from lexvl_anserini.runs.trec import ensure_run
from lexvl_anserini.searching.building import build_index, check_index
from lexvl_anserini.searching.index_runs import plan_run, write_index_run
from lexvl_anserini.searching.search import EncoderChanges, Search
from lexvl_anserini.searching.searcher import Index, Searcher
from lexvl_anserini.shards.writing import write_impacts

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.photos.demo")
SPLIT = "test"
HITS = 100
# Documents and topics of a scene, which has one image and five captions.
PER_SCENE = {"text-to-image": (1, 5), "image-to-text": (5, 1), "text-to-text": (1, 1)}
# Documents of each explained query, and terms of each document.
EXPLAINED_HITS, EXPLAINED_TERMS = 3, 6


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
SYSTEMS = (
    System("VDR, Lucene", "text-to-image.vdr-crossmodal", "text-to-image.vdr-crossmodal"),
    System("dense twin, FAISS", "text-to-image.dense-crossmodal", "text-to-image.dense-crossmodal"),
    System("VDR alpha, Lucene", "text-to-image.alpha", "text-to-image.vdr-crossmodal", {"mode": "alpha"}),
    System("VDR, Lucene", "image-to-text.vdr-crossmodal", "image-to-text.vdr-crossmodal"),
    System("dense twin, FAISS", "image-to-text.dense-crossmodal", "image-to-text.dense-crossmodal"),
    System("BM25 over captions", "captions.bm25", "captions.bm25"),
)
SHOWN = SYSTEMS[0]
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

    def find(self, demo: IndexedDemo) -> tuple[Path, Path]:
        """The folders of shards and index."""
        return self.output / "impacts" / demo.name, self.output / "indexes" / demo.name

    def find_run(self, system: System) -> Path:
        """The run of a system."""
        return self.output / "runs" / f"{system.run}.trec"

    def open(self, name: str) -> Index:
        """An index that was built."""
        path = self.output / "indexes" / name
        return Index(path, index_manifest(path))


class DemoStep(NamedTuple):
    """One step: what it does; the function that does it and may return a text for the end; what its progress counts."""

    what: str
    work: Callable[..., Any]
    total: int | None = None
    unit: str = "documents"


def list_steps(options: DemoOptions) -> Iterator[DemoStep]:
    """The steps, in their order."""
    scenes, topics = count_scenes(), {}
    for demo in INDEXES:
        documents, topics[demo.name] = (scenes * number for number in PER_SCENE[demo.direction])
        shards, path = options.find(demo)
        yield DemoStep(f"encode {demo.name}", partial(encode, demo, options), documents)
        yield DemoStep(f"index {demo.name}", partial(build_index, shards, path, overwrite=options.overwrite), documents)
        if demo.checked:
            yield DemoStep(f"check {demo.name}", partial(check_index, path, shards), documents)
    for system in SYSTEMS:
        yield DemoStep(f"search {system.run}", partial(search, system, options), topics[system.searched], "topics")
    yield DemoStep("measure", partial(measure, options))
    for query in QUERIES:
        yield DemoStep(f'explain "{query}"', partial(explain_query, query, options))
    yield DemoStep("draw the contact sheet", partial(draw_contact_sheet, options))
    yield DemoStep("search real photos", partial(search_photos, options))


def count_scenes() -> int:
    """The number of scenes that are in the package."""
    return sum(1 for _ in read_karpathy(list_demo_files(SPLIT)[0]))


def encode(demo: IndexedDemo, options: DemoOptions, progress: Progress) -> None:
    """Encodes the demo's documents of a direction into shards."""
    dataset = load_dataset("demo", SPLIT, options.data_dir, direction=demo.direction)
    direction = make_direction_option(demo.encoder, demo.direction)
    model = load_encoder(demo.encoder, demo.checkpoint, device=options.device, **direction)
    write_impacts(dataset, model, options.find(demo)[0], overwrite=options.overwrite, progress=progress)


def search(system: System, options: DemoOptions, progress: Progress) -> None:
    """Searches all topics and writes the run."""
    opened, run_file = options.open(system.searched), options.find_run(system)
    searcher = Searcher(opened, encoder=EncoderChanges(options=system.settings, device=options.device))
    source = find_topic_source(None, opened.path, opened.manifest, options.data_dir, None)
    request = plan_run(searcher, source, HITS, source.remove_query)
    write = partial(write_index_run, searcher, source, Search(), request, run_file, progress)
    ensure_run(run_file, request, options.overwrite, write)


def measure(options: DemoOptions, progress: Progress) -> str:
    """The table of all runs."""
    runs = [describe_run(options.find_run(system)) for system in SYSTEMS]
    table = render_captions(label_runs(runs, [system.label for system in SYSTEMS]), JudgementSource())
    scenes, captions = (count_scenes() * number for number in PER_SCENE["text-to-image"])
    return "\n".join((TITLE.format(scenes, captions), table.removesuffix("\n"), *NOTES))


def explain_query(query: str, options: DemoOptions, progress: Progress) -> str:
    """The explanations of a query's first documents."""
    changes = EncoderChanges(device=options.device)
    with Searcher(options.open(SHOWN.searched), encoder=changes) as searcher:
        explanations = searcher.explain(query, hits=EXPLAINED_HITS)
    return "\n".join((f'"{query}"', "\n\n".join(to_text(explanation, EXPLAINED_TERMS) for explanation in explanations)))


def draw_contact_sheet(options: DemoOptions, progress: Progress) -> str:
    """Draws three topics with their first images; returns where the sheet and the images are."""
    sheet, run_file = options.output / "contact-sheet.png", options.find_run(SHOWN)
    opened = options.open(SHOWN.searched)
    model = load_sheet_encoder(opened, run_file, device=options.device)
    draw_sheet(load_run_strips(run_file, opened, model, data_dir=options.data_dir), sheet, DEFAULT_TERMS)
    images = list_demo_files(SPLIT)[1]
    return f"document ID is the image ID.png in {images}\nqueries, their first images and terms: {sheet}"


def search_photos(options: DemoOptions, progress: Progress) -> str:
    """Encodes the sample photos and draws queries with their first photos; returns the photos' terms and the file."""
    try:
        model = load_encoder(PHOTOS.encoder, PHOTOS.checkpoint, device=options.device)
    except MissingExtra as missing:
        return f"no real photos: {missing}"
    dataset, sheet = load_dataset(SAMPLES), options.output / "photos.png"
    # Which photos there are depends on the packages that are installed now.
    write_impacts(dataset, model, options.find(PHOTOS)[0], overwrite=True)
    build_index(*options.find(PHOTOS), overwrite=True)
    strips = make_query_strips(dataset, options.open(PHOTOS.name), model, PHOTO_QUERIES, PHOTO_HITS)
    draw_sheet(with_maps(strips, model), sheet, DEFAULT_TERMS, maps=True)
    terms = own_terms(model, list(dataset.documents()))
    width = max(map(len, terms))
    lines = [f"  {doc_id:{width}}  {' '.join(first)}" for doc_id, first in terms.items()]
    title = f"{len(terms)} photos of installed packages, and their first terms by {PHOTOS.checkpoint}:"
    return "\n".join((title, *lines, f"queries, their first photos, terms, and maps of where the terms are: {sheet}"))


@expand_options
def command(options: DemoOptions, verbose: Verbose = False) -> None:
    """Show everything on drawn images: encode, index, check, search, measure, explain, and draw a contact sheet.

    It needs no download and some minutes on 2 cores.

    Example: python -m lexvl_plugins.photos.demo --output lexvl-demo
    """
    started, steps, texts = time.perf_counter(), list(list_steps(options)), []
    with exclusive(options.output):
        for number, step in enumerate(steps, start=1):
            begun = time.perf_counter()
            with progress_bar(step.what, step.total, step.unit) as progress:
                texts.append(step.work(progress=progress))
            log.info("%2d/%d  %-45s %6.1f s", number, len(steps), step.what, time.perf_counter() - begun)
    for text in texts:
        if isinstance(text, str):
            typer.echo(f"\n{text}")
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {options.output}/")


if __name__ == "__main__":
    run(command)
