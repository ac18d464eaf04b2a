"""Encodes all parts of a planned corpus into one folder, a `EncodedCollection`, by any runner.

Parts are encoded in any order and by any number of processes, each with the encoder that it loads itself; the bytes are
the same. A call that was killed is repeated: finished parts stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lexvl_anserini.data.dataset import dataset_of
from lexvl_anserini.encoders.loading import EncoderSpec
from lexvl_anserini.ground.claims import Claim, claim, same_request
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import file_sha256
from lexvl_anserini.ground.manifest import MANIFEST, CorpusRef, Counts, EncodedCorpus, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.shards.collection import SUMMED, part_name, source_digest
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.cluster.collection import COLLECTION, EncodedCollection
from lexvl_plugins.cluster.places import fetched, fetched_file, published
from lexvl_plugins.cluster.plans import CorpusPlan, whole_request
from lexvl_plugins.cluster.runners import all_results, current_runner
from lexvl_plugins.cluster.storage import make_place, publish_file, withdraw_file

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder


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
    refuse_other(request, plan)
    make_place(request.output)
    refuse_other_parts(request, plan)
    parts = [Part(number, plan.parts) for number in range(plan.parts)]
    encoded = partial(encode_part, request)
    for number, documents in all_results(
        current_runner(), encoded, range(plan.parts), lambda number: part_name(parts[number]), plan.threads
    ):
        assert documents == parts[number].span(plan.summary.documents)[1], "documents out are not documents in"
        # On a disk that this process does not share with the others, the first part shows it.
        read_manifest(fetched(request.output / part_name(parts[number]), [MANIFEST]))
        progress(documents)
    collection = collected(request.output, plan)
    collection.write(request.output)
    publish_file(request.output / COLLECTION)
    return collection


def encode_part(request: PartsRequest, number: int) -> int:
    """Encodes one part, unless it is finished; returns the number of its documents, of skipped ones too."""
    plan = loaded_plan(request.plan)
    part = Part(number, plan.parts)
    folder = request.output / part_name(part)
    with published(folder):
        manifest = write_impacts(
            dataset_of(request.corpus),
            loaded_encoder(request),
            folder,
            request.quantiser,
            request.layout,
            request.batch_size,
            request.overwrite,
            on_error=request.on_error,
            part=plan.part(part),
        )
        for shard in manifest.shards:
            if file_sha256(folder / shard["name"]) != shard["sha256"]:
                raise ArtefactError(f"{folder / shard['name']}: not as it was written; remove it")
    return manifest.counts.documents + manifest.counts.skipped


@lru_cache(maxsize=1)
def loaded_plan(path: Path) -> CorpusPlan:
    """The plan, whose number of threads PyTorch uses from now on in this process."""
    return CorpusPlan.read(path).with_threads()


# The last request of this process with its encoder: a process encodes many parts, and loads the encoder once.
_loaded: list[tuple[EncoderSpec, Encoder]] = []


def loaded_encoder(request: PartsRequest) -> Encoder:
    """The encoder of a request."""
    if not _loaded or _loaded[0][0] != request.encoder:
        _loaded[:] = [(request.encoder, request.encoder.load())]
    return _loaded[0][1]


def refuse_other(request: PartsRequest, plan: CorpusPlan) -> None:
    """Refuses a folder of another collection, unless it may be overwritten."""
    if fetched_file(request.output / COLLECTION).is_file():
        collection = EncodedCollection.read(request.output)
        planned, there = whole_request(plan.manifest), whole_request(collection.manifest)
        if claim(request.output, "a collection", planned, there, request.overwrite) is Claim.FRESH:
            withdraw_file(request.output / COLLECTION)


def refuse_other_parts(request: PartsRequest, plan: CorpusPlan) -> None:
    """Refuses a request that no part of the plan can fulfil, before any process begins."""
    planned = plan.manifest
    requested = {"encoder": request.encoder.name, "corpus": request.corpus.name}
    earlier = {"encoder": planned.encoder.name, "corpus": planned.corpus.name}
    if not (same := same_request(requested, earlier)):
        raise ArtefactError(f"{request.plan}: the plan is of another request ({same}); plan again")
    for folder in sorted(request.output.glob("part-*-of-*")):
        if not folder.name.endswith(f"-of-{plan.parts:05}"):
            raise ArtefactError(
                f"{folder}: a part of another plan, this one has {plan.parts} parts; name another --output"
            )


def collected(output: Path, plan: CorpusPlan) -> EncodedCollection:
    """The collection of the parts of a plan that are all encoded; one manifest is in memory at a time."""
    counts, shards, contents = Counts(), sha256(), sha256()
    planned, covered, most = whole_request(plan.manifest), True, 0
    for number in range(plan.parts):
        folder = output / part_name(Part(number, plan.parts))
        manifest = read_manifest(fetched(folder, [MANIFEST]))
        if not (same := same_request(planned, whole_request(manifest))):
            raise ArtefactError(f"{folder}: of another request ({same}); --overwrite encodes it again")
        if manifest.quantiser != plan.manifest.quantiser:
            raise ArtefactError(f"{folder}: another scale of impacts than the plan's; --overwrite encodes it again")
        counts = Counts(
            {**counts, **{k: counts.get(k, 0) + manifest.counts[k] for k in SUMMED if k in manifest.counts}}
        )
        most = max(most, manifest.counts.max_impact or 0)
        covered = covered and manifest.corpus.contents is not None
        contents.update((manifest.corpus.contents or "").encode())
        shards.update(source_digest(manifest).encode())
    if plan.manifest.kind == "impact":
        counts["max_impact"] = most
    corpus = EncodedCorpus({**plan.manifest.corpus, **({"contents": contents.hexdigest()} if covered else {})})
    return EncodedCollection(replace(plan.manifest, corpus=corpus, counts=counts), plan.parts, shards.hexdigest())
