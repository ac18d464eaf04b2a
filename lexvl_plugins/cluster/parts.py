"""Encodes all parts of a planned corpus into one folder, a collection, by any runner.

OUT/part-00000-of-00004/     the shards of a part, as `write_impacts` leaves them
OUT/collection.json          written at the end: the counts of all parts, and the digest of their shards

Parts are encoded in any order and by any number of processes, each with the encoder that it loads itself; the bytes are
the same. A call that was killed is repeated: finished parts stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import EncoderSpec
from lexvl_anserini.engines.index_folder import HEADS
from lexvl_anserini.ground.claims import Claim, claim, compare_requests
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import compute_sha256, read_json, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Counts, EncodedCorpus, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.shards.layout import SUMMED, Layout, Part, name_part_folder, source_digest
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.cluster import storage
from lexvl_plugins.cluster.plans import CorpusPlan, describe_whole
from lexvl_plugins.cluster.runners import get_runner, run_all

COLLECTION = "collection.json"
FORMAT = "lexvl-collection/1"


class EncodedCollection(NamedTuple):
    """All parts of a corpus: the manifest of the whole without its shards, and a digest of what all shards hold."""

    manifest: Manifest
    parts: int
    digest: str

    def list_folders(self, folder: Path) -> list[Path]:
        """The folder of each part."""
        return [folder / name_part_folder(Part(number, self.parts)) for number in range(self.parts)]

    def write(self, folder: Path) -> None:
        """Writes collection.json."""
        entry = {"format": FORMAT, "parts": self.parts, "digest": self.digest, "manifest": self.manifest.to_json()}
        write_json(folder / COLLECTION, entry)

    @classmethod
    def read(cls, folder: Path) -> EncodedCollection:
        """The collection of a folder."""
        path = folder / COLLECTION
        content = read_json(path, "collection")
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            manifest = Manifest.from_json(content["manifest"], str(path))
            return cls(manifest, int(content["parts"]), str(content["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{path}: no collection of this version ({error!r}); encode again") from error


def fetch_shards(folder: Path, heads: bool = False) -> Path:
    """A folder of shards, or of all parts of a corpus, whose files are here, or only those that a build reads first."""
    if storage.find_url(folder):
        parts = [folder]
        if storage.fetch_file(folder / COLLECTION).is_file():
            parts = EncodedCollection.read(folder).list_folders(folder)
        for stale in {*folder.glob("part-*-of-*")} - {*parts}:
            storage.discard(stale)
        for part in parts:
            storage.fetch(part, HEADS if heads else None)
    return folder


@dataclass(frozen=True)
class PartsRequest:
    """What a process needs to encode any part of a planned corpus; it can be sent to another process."""

    plan: Path
    output: Path
    corpus: CorpusRef
    encoder: EncoderSpec
    quantiser: Quantiser
    layout: Layout
    batch_size: int = 32
    on_error: str = "fail"
    overwrite: bool = False


def encode_parts(request: PartsRequest, progress: Progress = silent) -> EncodedCollection:
    """Encodes all parts of a plan, by the runner that is in use, into `request.output`."""
    plan = CorpusPlan.read(request.plan)
    if storage.fetch_file(request.output / COLLECTION).is_file():
        planned, there = map(describe_whole, (plan.manifest, EncodedCollection.read(request.output).manifest))
        if claim(request.output, "a collection", planned, there, request.overwrite) is Claim.FRESH:
            storage.withdraw_file(request.output / COLLECTION)
    storage.make_place(request.output)
    _refuse_other_parts(request, plan)
    parts = [Part(number, plan.parts) for number in range(plan.parts)]
    names, encode = list(map(name_part_folder, parts)), partial(encode_part, request)
    for number, documents in run_all(get_runner(), encode, range(plan.parts), names.__getitem__, plan.threads):
        assert documents == parts[number].span(plan.summary.documents)[1], "documents out are not documents in"
        # On a disk that this process does not share with the others, the first part shows it.
        read_manifest(storage.fetch(request.output / names[number], [MANIFEST]))
        progress(documents)
    collection = _collect_parts(request.output, plan)
    collection.write(request.output)
    storage.publish_file(request.output / COLLECTION)
    return collection


def encode_part(request: PartsRequest, number: int) -> int:
    """Encodes one part, unless it is finished; returns the number of its documents, of skipped ones too."""
    plan = load_plan(request.plan)
    part = Part(number, plan.parts)
    with storage.publish_after(folder := request.output / name_part_folder(part)):
        dataset, model = load_reference(request.corpus), _load_encoder(request.encoder)
        settings = (request.quantiser, request.layout, request.batch_size, request.overwrite)
        planned = plan.take_part(part)
        manifest = write_impacts(dataset, model, folder, *settings, on_error=request.on_error, part=planned)
        for shard in manifest.shards:
            if compute_sha256(folder / shard["name"]) != shard["sha256"]:
                raise ArtefactError(f"{folder / shard['name']}: not as it was written; remove it")
    return manifest.counts.documents + manifest.counts.skipped


@lru_cache(maxsize=1)
def load_plan(path: Path) -> CorpusPlan:
    """The plan, whose number of threads PyTorch uses from now on in this process."""
    import torch

    plan = CorpusPlan.read(path)
    torch.set_num_threads(plan.threads)
    return plan


# The last encoder of this process by its request: a process encodes many parts, and loads the encoder once.
_loaded: list[tuple[EncoderSpec, Encoder]] = []


def _load_encoder(request: EncoderSpec) -> Encoder:
    if not _loaded or _loaded[0][0] != request:
        _loaded[:] = [(request, request.load())]
    return _loaded[0][1]


def _refuse_other_parts(request: PartsRequest, plan: CorpusPlan) -> None:
    """Refuses a request that no part of the plan can fulfil, before any process begins."""
    planned = plan.manifest
    requested = {"encoder": request.encoder.name, "corpus": request.corpus.name}
    earlier = {"encoder": planned.encoder.name, "corpus": planned.corpus.name}
    if not (same := compare_requests(requested, earlier)):
        raise ArtefactError(f"{request.plan}: the plan is of another request ({same}); plan again")
    for folder in sorted(request.output.glob("part-*-of-*")):
        if not folder.name.endswith(f"-of-{plan.parts:05}"):
            other = f"a part of another plan, this one has {plan.parts} parts"
            raise ArtefactError(f"{folder}: {other}; name another --output")


def _collect_parts(output: Path, plan: CorpusPlan) -> EncodedCollection:
    """The collection of the parts of a plan that are all encoded; one manifest is in memory at a time."""
    counts, shards, contents = Counts(), sha256(), sha256()
    planned, covered, most = describe_whole(plan.manifest), True, 0
    for number in range(plan.parts):
        folder = output / name_part_folder(Part(number, plan.parts))
        manifest = read_manifest(storage.fetch(folder, [MANIFEST]))
        if not (same := compare_requests(planned, describe_whole(manifest))):
            raise ArtefactError(f"{folder}: of another request ({same}); --overwrite encodes it again")
        if manifest.quantiser != plan.manifest.quantiser:
            raise ArtefactError(f"{folder}: another scale of impacts than the plan's; --overwrite encodes it again")
        sums = {key: counts.get(key, 0) + manifest.counts[key] for key in SUMMED if key in manifest.counts}
        counts = Counts({**counts, **sums})
        most = max(most, manifest.counts.max_impact or 0)
        covered = covered and manifest.corpus.contents is not None
        contents.update((manifest.corpus.contents or "").encode())
        shards.update(source_digest(manifest).encode())
    if plan.manifest.kind == "impact":
        counts["max_impact"] = most
    corpus = EncodedCorpus({**plan.manifest.corpus, **({"contents": contents.hexdigest()} if covered else {})})
    return EncodedCollection(replace(plan.manifest, corpus=corpus, counts=counts), plan.parts, shards.hexdigest())
