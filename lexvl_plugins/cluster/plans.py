"""A plan of a corpus: what all its parts share, computed once, so that each part reads its own documents alone.

The file (JSON) has the manifest of the whole before it is encoded, with the scale from the sample of the whole corpus,
and the corpus in blocks of documents: the digest of each, and where it begins in the file of the corpus.

A corpus whose own files have no places to begin at gets a listing: its documents as JSON lines, with the fields of a
`Document`; pictures and vectors are named, not contained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice, starmap
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.data.checks import CorpusSummary, check_corpus, pack_document
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.lines import LinePlace, parse_object, read_placed_lines
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.claims import compare_requests
from lexvl_anserini.ground.errors import ArtefactError, DataError, OnError, UsageError
from lexvl_anserini.ground.files import atomic_write, read_json, write_json
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import NO_METADATA, Document
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.shards.encoding import Covered, CoveredDigest, calibrate, exhaust
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import request_shards
from lexvl_plugins.cluster.storage import fetch_file, publish_file

FORMAT = "lexvl-plan/1"

# Documents between two places: what a part reads more than its own documents, at most, at either end.
BLOCK_SIZE = 1024


class CorpusBlock(NamedTuple):
    """Consecutive documents: SHA-256 (hex) of ids, titles, texts and names of images; their place, if it has places."""

    digest: str
    place: LinePlace | None


@dataclass(frozen=True)
class CorpusPlan:
    """What the parts of a corpus share.

    Attributes:
        manifest: of the whole corpus before it is encoded, with the scale of its impacts.
        threads: of PyTorch; they decide the last bits of weights.
        listing: file of the documents, beside the plan, of a corpus whose own files have no places; None for others.
    """

    manifest: Manifest
    images: int
    parts: int
    threads: int
    block_size: int
    blocks: tuple[CorpusBlock, ...]
    listing: Path | None = None

    @property
    def summary(self) -> CorpusSummary:
        """The summary of the whole corpus."""
        corpus = self.manifest.corpus
        return CorpusSummary(corpus.documents, corpus.digest, self.images)

    def take_part(self, part: Part) -> Callable[[Dataset], PlannedCorpus]:
        """The documents of one of the parts, of a dataset."""
        if part.of != self.parts:
            raise UsageError(f"a part of {part.of} is wanted, the plan has {self.parts} parts")
        part.span(self.summary.documents)
        return partial(PlannedCorpus, plan=self, part=part)

    def write(self, path: Path) -> None:
        """Writes the file."""
        content = {**asdict(self), "manifest": self.manifest.to_json(), "format": FORMAT}
        content["listing"] = self.listing.name if self.listing else None
        content["blocks"] = [[block.digest, *(block.place or ())] for block in self.blocks]
        write_json(path, content)
        if self.listing:
            publish_file(self.listing)
        publish_file(path)

    @classmethod
    def read(cls, path: Path) -> CorpusPlan:
        """Reads the file."""
        content: Mapping[str, Any] = read_json(fetch_file(path), "plan of a corpus")
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            pairs = ((digest, LinePlace(*place) if place else None) for digest, *place in content["blocks"])
            blocks = tuple(starmap(CorpusBlock, pairs))
            numbers = {name: int(content[name]) for name in ("images", "parts", "threads", "block_size")}
            manifest = Manifest.from_json(content["manifest"], str(path))
            listing = fetch_file(path.parent / Path(content["listing"]).name) if content.get("listing") else None
            if min(numbers["parts"], numbers["block_size"]) < 1:
                raise ValueError(f"{numbers['parts']} parts, blocks of {numbers['block_size']}")
            if len(blocks) != -(-manifest.corpus.documents // numbers["block_size"]):
                raise ValueError(f"{len(blocks)} blocks of {manifest.corpus.documents} documents")
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{path}: no plan of a corpus of this version ({error!r}); plan again") from error
        return cls(manifest=manifest, blocks=blocks, listing=listing, **numbers)


@dataclass
class PlannedCorpus:
    """The documents of a planned part, read twice: only the blocks that have them are read."""

    dataset: Dataset
    plan: CorpusPlan
    part: Part
    _blocks: dict[int, Any] = field(default_factory=dict)
    _rest: Iterator[Document] = field(default_factory=lambda: iter(()))

    def check(self, covered: Covered) -> CorpusSummary:
        """The summary of the plan; the part is read if it has pictures, vectors or metadata."""
        summary, contents = self.plan.summary, CoveredDigest(covered)
        if covered.metadata or summary.images:
            contents.add(self.documents())
        return summary._replace(contents=contents.hexdigest())

    def settle(self, request: Manifest, output: Path) -> Manifest:
        """The request with the scale of the plan, which must be of the same request."""
        manifest = self.plan.manifest
        requested, planned = ({**describe_whole(m), "versions": dict(m.versions)} for m in (request, manifest))
        if not (same := compare_requests(requested, planned)):
            raise ArtefactError(f"{output}: the plan is of another request ({same}); plan again")
        return replace(request, quantiser=manifest.quantiser)

    def calibrate(self, quantiser: Quantiser, model: Encoder, batch_size: int, on_error: OnError) -> Quantiser:
        """The quantiser, which has the scale of the plan."""
        return quantiser

    def documents(self) -> Iterator[Document]:
        """The documents of the part, from the place of its first block on."""
        first, count = self.part.span(self.plan.summary.documents)
        size = self.plan.block_size
        begin, end = first // size, -(-(first + count) // size)
        self._blocks = {number: sha256() for number in range(begin, end)}
        place, listing = self.plan.blocks[begin].place, self.plan.listing
        dataset = use_listing(self.dataset, listing) if listing else self.dataset
        documents: Iterator[Document]
        if dataset.placed is not None and place is not None:
            documents = (document for _, document in dataset.placed(place))
        else:
            documents = islice(dataset.documents(), begin * size, None)
        self._rest = self._digest(islice(documents, (end - begin) * size), begin * size)
        exhaust(islice(self._rest, first - begin * size))
        return islice(self._rest, count)

    def is_unchanged(self) -> bool:
        """Compares the blocks."""
        exhaust(self._rest)
        return all(digest.hexdigest() == self.plan.blocks[number].digest for number, digest in self._blocks.items())

    def _digest(self, documents: Iterator[Document], first: int) -> Iterator[Document]:
        for position, document in enumerate(documents, start=first):
            self._blocks[position // self.plan.block_size].update(pack_document(document))
            yield document


def plan_corpus(
    dataset: Dataset,
    model: Encoder,
    parts: int,
    quantiser: Quantiser | None = None,
    layout: Layout | None = None,
    batch_size: int = 32,
    on_error: str = "fail",
    block_size: int = BLOCK_SIZE,
    listing: Path | None = None,
) -> CorpusPlan:
    """Reads a corpus once and calibrates its impacts, so that `write_impacts` encodes each part by itself.

    Args: as those of `write_impacts`; `parts` is their number, `block_size` that of the documents between two places
        of the corpus at which a part can begin to read. `listing` is the file to which the documents of a corpus
        without places are written, so that they have places there; None to read those before a part.
    """
    import torch

    check_count("batch_size", batch_size)
    listing = None if dataset.placed else listing
    if listing is not None:
        with atomic_write(listing) as out:
            for document in dataset.documents():
                fields = document._replace(metadata=dict(document.metadata))._asdict()
                stated = {key: value for key, value in fields.items() if value not in (None, {})}
                out.write(orjson.dumps(stated) + b"\n")
    summary, blocks = read_in_blocks(use_listing(dataset, listing) if listing else dataset, block_size)
    Part(0, parts).span(summary.documents)
    quantiser, layout = quantiser or Quantiser(), (layout or Layout()).fit_kind(model.kind)
    policy, documents = OnError(on_error), summary.documents
    manifest = request_shards(dataset, summary, model, quantiser, layout, batch_size)
    if manifest.quantiser:
        scale = calibrate(quantiser, dataset.documents(), documents, model, batch_size, policy, dataset.name)
        manifest = replace(manifest, quantiser=scale.to_json())
    return CorpusPlan(manifest, summary.images, parts, torch.get_num_threads(), block_size, blocks, listing)


def describe_whole(manifest: Manifest) -> dict[str, Any]:
    """The request of the whole corpus, as its plan has it: neither part nor contents, which are known afterwards."""
    request = manifest.request()
    corpus = {key: value for key, value in request["corpus"].items() if key not in ("part", "contents")}
    return {**request, "corpus": corpus}


def read_in_blocks(dataset: Dataset, size: int) -> tuple[CorpusSummary, tuple[CorpusBlock, ...]]:
    """Reads a corpus once: its summary, and its blocks."""
    places: list[tuple[Any, LinePlace | None]] = []

    def documents() -> Iterator[Document]:
        if places:  # a second pass, over ids that may be equal
            yield from dataset.documents()
            return
        pairs = dataset.placed(LinePlace()) if dataset.placed else ((None, d) for d in dataset.documents())
        for position, (place, document) in enumerate(pairs):
            if position % size == 0:
                places.append((sha256(), place))
            places[-1][0].update(pack_document(document))
            yield document

    summary = check_corpus(documents, dataset.name)
    return summary, tuple(CorpusBlock(digest.hexdigest(), place) for digest, place in places)


def name_listing(plan: Path) -> Path:
    """The file of documents beside a plan."""
    return plan.with_name(plan.name + ".documents.jsonl")


def read_listing(path: Path, place: LinePlace = LinePlace()) -> Iterator[tuple[LinePlace, Document]]:
    """The documents from a place on, each with its place."""
    for here, line in read_placed_lines(path, place):
        fields = parse_object(line)
        if not set(fields) <= set(Document._fields) or "doc_id" not in fields:
            raise DataError(f"{line.where}: no document of a listing (keys {', '.join(fields)}); plan the corpus again")
        yield here, Document(**{"metadata": NO_METADATA, **fields})


def use_listing(dataset: Dataset, path: Path) -> Dataset:
    """The dataset with the places of its listing."""
    return replace(dataset, placed=partial(read_listing, path))
