"""Encodes a corpus into a folder of shards with a manifest: deterministic, and resumable after a kill.

    OUT/docs/shard-00000.jsonl   what stock Anserini indexes (it reads all files of a folder, hence `docs/`)
    OUT/vocab.txt                one term a line, in the order of dimensions (impact shards only)
    OUT/skipped.jsonl            documents that are skipped because their image cannot be read, if there are any
    OUT/manifest.json            written at the end; until then OUT/unfinished.json keeps the plan

The plan is written first and removed last: a folder with neither plan nor manifest belongs to something else. A shard
is written under a temporary name, recorded in the plan, then renamed. A command that is killed at any byte and started
again writes the same bytes and encodes no finished shard twice.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.checks import CorpusSummary
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.encoders.encoder import Encoder, as_lexical
from lexvl_anserini.ground.claims import Claim, claim, report_finished
from lexvl_anserini.ground.errors import ArtefactError, DataError, OnError, UsageError
from lexvl_anserini.ground.files import (
    atomic_write,
    compute_sha256,
    disk_errors,
    exclusive,
    make_folder,
    name_part,
    publish,
    read_json,
    refuse_inside,
)
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.manifest import (
    MANIFEST,
    UNFINISHED,
    Counts,
    EncodedCorpus,
    Manifest,
    ShardRecord,
    write_manifest,
)
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import VOCABULARY, QuantiserEntry, VocabularyEntry
from lexvl_anserini.ground.registry import RUNTIMES, TORCH
from lexvl_anserini.ground.typed import check_count, check_type
from lexvl_anserini.shards.encoding import CorpusReading, Covered, CoveredDigest, PartOfPlan, WholeCorpus, encode_shard
from lexvl_anserini.shards.layout import SHARD_WRITERS, Layout, Part, Shard, SkippedDocument, shard_stream, sum_counts

log = logging.getLogger(__name__)

# Packages whose versions decide the bytes of a shard.
VERSIONED = ("lexvl-anserini", "numpy", "sentence-transformers", "tokenizers", "torch", "transformers")

SKIPPED = "skipped.jsonl"
CONTENTS = "pictures, vectors or metadata"  # what the second digest of a corpus covers, in words


def check_arguments(dataset: Any, model: Any, output: Any, batch_size: Any) -> None:
    """Refuses (UsageError) arguments of `write_impacts` that have another type."""
    check_count("batch_size", batch_size)
    check_type("dataset", dataset, Dataset, "what load_dataset returns")
    if not hasattr(model, "document"):  # models of users are encoders too
        raise UsageError(f"model is {model!r:.60}, expected what load_encoder returns")
    check_type("output", output, str | Path, "a folder")


def write_impacts(
    dataset: Dataset,
    model: Encoder,
    output: Path | str,
    quantiser: Quantiser | None = None,
    layout: Layout | None = None,
    batch_size: int = 32,
    overwrite: bool = False,
    progress: Progress = silent,
    on_error: str = "fail",
    part: Part | PartOfPlan | None = None,
) -> Manifest:
    """Encodes a corpus, or a part of it, into shards of the model's kind (impact, dense or text).

    The documents are read twice: to check, digest and sample them, and to encode them. Calibration encodes its sample
    of 256 documents one time more; a corpus of more than 16,384 documents is read again up to the last of the sample.

    Args:
        output: a new folder, an unfinished one of the same request (resumed), or a finished one (unchanged, except that
            missing or incomplete shards are encoded again).
        quantiser: for lexical models; the default calibrates documents to 8 bits and gives queries up to 8 bits.
        batch_size: texts per forward pass; never crosses a shard.
        on_error: for images that cannot be read: "fail", or "skip" (counted, listed in skipped.jsonl).
        part: encode only this part of the corpus. All parts use the scale from the sample of the whole corpus, so that
            they can be merged. A part of a plan reads its own documents alone; its shards and manifest are the same.
    """
    check_arguments(dataset, model, output, batch_size)
    output, policy = Path(output), OnError(on_error)
    if dataset.folder:
        refuse_inside(output, dataset.folder, "the documents")
    reading = WholeCorpus(dataset, part) if part is None or isinstance(part, Part) else part(dataset)
    layout = (layout or Layout()).fit_kind(model.kind)
    with FileDigests() as files:
        covered = Covered(model.document, layout.metadata, files)
        summary = reading.check(covered)
        request = request_shards(dataset, summary, model, quantiser or Quantiser(), layout, batch_size, reading.part)
        request = reading.settle(request, output)
        with exclusive(output):
            decision, plan = claim_on_shards(output, request, overwrite, on_error)
            if decision is Claim.DONE and plan is not None:
                report_finished(output)
                progress(request.documents)
                return plan
            if plan is None or plan.corpus.contents not in (None, request.corpus.contents):
                scale = request.quantiser  # empty for shards without impacts
                if scale:
                    scale = reading.calibrate(Quantiser.from_json(scale), model, batch_size, policy).to_json()
                plan = replace(request, quantiser=scale, shards=select_valid(output, plan, scale, overwrite))
                write_manifest(output, plan, UNFINISHED)
            shards = UnfinishedShards(output, plan, model, layout, covered)
            shards.fill(reading, batch_size, progress, policy)
            return shards.finish()


def request_shards(
    dataset: Dataset,
    summary: CorpusSummary,
    model: Encoder,
    quantiser: Quantiser,
    layout: Layout,
    batch_size: int,
    part: Part | None = None,
) -> Manifest:
    """The manifest before anything is encoded: without shards and counts, and perhaps without the scale of impacts."""
    vocabulary = model.vocabulary if model.kind == "impact" else None
    if vocabulary is not None and as_lexical(model.query).vocabulary.digest != vocabulary.digest:
        raise ArtefactError(f"encoder {model.name!r}: query and document towers have different vocabularies")
    return Manifest(
        kind=model.kind,
        encoder=model.identity(),
        quantiser=QuantiserEntry() if vocabulary is None else model.fit_quantiser(quantiser).to_json(),
        vocabulary=VocabularyEntry() if vocabulary is None else vocabulary.to_json(),
        corpus=EncodedCorpus(
            name=dataset.name,
            split=dataset.split,
            data_dir=dataset.data_dir,
            escape_ids=dataset.escape_ids,
            direction=dataset.direction,
            **({} if dataset.passages is None else {"passages": dataset.passages}),
            documents=summary.documents,
            digest=summary.digest,
            **({} if part is None else {"part": part.describe(summary.documents)}),
            **({} if summary.contents is None else {"contents": summary.contents}),
        ),
        counts=Counts(),
        layout=layout.to_json(),
        versions={**list_versions(VERSIONED), **describe_circumstances(model, batch_size)},
    )


def describe_circumstances(model: Encoder, batch_size: int) -> dict[str, str]:
    """Device, batch size and another runtime's version: besides versions, they decide the last bits of weights."""
    device, runtime = getattr(model, "device", None), getattr(model, "options", {}).get("runtime", TORCH)
    last_bits = {"device": device, "batch_size": str(batch_size)} if device and model.kind != "text" else {}
    row = RUNTIMES.get(runtime)
    return {**last_bits, **list_versions([row.package] if row and row.package else [])}


def claim_on_shards(
    output: Path, request: Manifest, overwrite: bool, on_error: str = "fail"
) -> tuple[Claim, Manifest | None]:
    """What to do with a folder, and the manifest or plan there; removes the shards of another request if it may."""
    names = {path.name for path in output.iterdir()}
    state = next((name for name in (MANIFEST, UNFINISHED) if name in names), None)
    if state is None:
        if names - {name_part(output / UNFINISHED).name}:
            raise ArtefactError(f"{output}: not empty and not written by encode; name another --output")
        return Claim.FRESH, None
    manifest = Manifest.from_json(read_json(output / state, "manifest"), str(output / state))
    if state == MANIFEST and not all(has_size(output, shard) for shard in manifest.shards):
        publish(output / MANIFEST, output / UNFINISHED)
        state = UNFINISHED
    finished = state == MANIFEST
    # A plan without a finished shard has cost no time: another request replaces it.
    replaceable = overwrite or not finished and not manifest.shards
    requests = comparable(request, manifest, finished, on_error)
    if request.corpus.contents and not manifest.corpus.contents:
        log.info("%s: an older version wrote it, whose digest does not cover pixels, vectors and metadata", output)
    decision = claim(output, "shards" if finished else "unfinished shards", *requests, replaceable, finished)
    if decision is Claim.FRESH:
        clear(output)
        return decision, None
    if finished and (output / UNFINISHED).exists():
        # Only what is there: on a read-only disk a removal fails even of nothing.
        (output / UNFINISHED).unlink()
    return decision, manifest


def comparable(
    request: Manifest, manifest: Manifest, finished: bool, on_error: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request of this call and of the earlier one, with entries whose names a user understands."""
    requested, earlier = request.request(), manifest.request()
    if request.corpus.contents and not manifest.corpus.contents:
        del requested["corpus"]["contents"]
    for entries in (requested, earlier):
        entries["texts"], entries[CONTENTS] = (entries["corpus"].pop(key, None) for key in ("digest", "contents"))
    if not finished:
        requested["versions"], earlier["versions"] = request.versions, manifest.versions
        if all(shard.get("contents") for shard in manifest.shards):
            earlier[CONTENTS] = requested[CONTENTS]  # compared shard by shard, when the shards are filled
    if on_error == "fail" and (without := sum(shard.get("skipped", 0) for shard in manifest.shards)):
        requested["skipped"] = "no document"
        accepting = f"see {SKIPPED}; --on-error skip accepts it"
        earlier["skipped"] = f"{without} documents whose images cannot be read, {accepting}"
    return requested, earlier


def select_valid(
    output: Path, unfinished: Manifest | None, quantiser: QuantiserEntry, overwrite: bool
) -> tuple[ShardRecord, ...]:
    """The shards of an unfinished folder that still count: all, or none if the scale of the impacts changed."""
    if unfinished is None or not unfinished.shards:
        return ()
    if unfinished.quantiser == quantiser:
        return unfinished.shards
    if not overwrite:
        what = f"{CONTENTS} of the sample that calibrates impacts changed, and with them the scale of the unfinished"
        raise ArtefactError(f"{output}: {what} shards; --overwrite replaces these")
    clear(output)
    return ()


def clear(output: Path) -> None:
    """Removes what encode writes; if it is interrupted, the folder counts as unfinished, not as finished or foreign."""
    if (output / MANIFEST).is_file():
        publish(output / MANIFEST, output / UNFINISHED)
    if (output / "docs").is_dir():
        shutil.rmtree(output / "docs")
    for part in output.glob("shard-*.part"):
        part.unlink()
    for name in (VOCABULARY, SKIPPED, UNFINISHED):
        (output / name).unlink(missing_ok=True)


def has_size(output: Path, shard: ShardRecord) -> bool:
    """True if a recorded shard is on disk with its number of bytes."""
    path = output / shard.name
    return path.is_file() and path.stat().st_size == shard.bytes


def is_recorded(output: Path, shard: ShardRecord) -> bool:
    """True if a recorded shard is on disk as recorded; a complete `.part` file of the shard gets its name first."""
    path = output / shard.name
    part = output / (path.name + ".part")
    if not path.is_file() and part.is_file() and compute_sha256(part) == shard.sha256:
        publish(part, path)
    if has_size(output, shard) and compute_sha256(path) == shard.sha256:
        return True
    log.warning("%s: not as recorded; encoding it again", path)
    return False


@dataclass
class UnfinishedShards:
    """A folder of shards that is being written: its plan, and the records of finished shards by name."""

    output: Path
    plan: Manifest
    model: Encoder
    layout: Layout
    covered: Covered
    records: dict[str, ShardRecord] = field(default_factory=dict)

    def fill(self, reading: CorpusReading, batch_size: int, progress: Progress, on_error: OnError) -> None:
        """Encodes the shards that are not recorded as done, or whose pictures, vectors or metadata changed since.

        What was encoded is digested after it was encoded, so that a change between the two reads is seen.
        """
        if self.plan.shards:
            log.info("%s: resuming after %d finished shards", self.output, len(self.plan.shards))
        quantiser = Quantiser.from_json(self.plan.quantiser) if self.plan.quantiser else Quantiser()
        with disk_errors(self.output):
            make_folder(self.output / "docs")
        if self.model.kind == "impact":
            self.model.vocabulary.write(self.output / VOCABULARY)
        self.records = {shard.name: shard for shard in self.plan.shards if is_recorded(self.output, shard)}
        done, contents, documents = set(self.records), CoveredDigest(self.covered), reading.documents()
        for number, batch in enumerate(make_batches(documents, self.layout.shard_size)):
            name = self.layout.name(number)
            shard = None
            if name in done and self.records[name].contents in (None, CoveredDigest(self.covered).add(batch)):
                progress(len(batch))
            else:
                shard = encode_shard(batch, self.model, quantiser, batch_size, progress, on_error)
            digest = contents.add(batch) if self.plan.corpus.contents else None
            if shard is not None:
                self.add(name, shard, digest)
        if not reading.is_unchanged() or contents.hexdigest() != self.plan.corpus.contents:
            clear(self.output)
            raise ArtefactError(
                f"{self.output}: the corpus changed while it was read; all shards are removed, run the same command "
                "again"
            )

    def add(self, name: str, shard: Shard, contents: str | None) -> None:
        """Writes a shard under a temporary name, records it in the plan, then gives it its name."""
        vocabulary = self.model.vocabulary if self.model.kind == "impact" else None
        part = self.output / (Path(name).name + ".part")
        with disk_errors(part):
            try:
                with shard_stream(part, name.endswith(".gz")) as out:
                    SHARD_WRITERS[self.model.kind, self.layout.shard_format](out, shard, vocabulary, self.layout)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        list_skipped(self.output / SKIPPED, name, shard.skipped)
        record = ShardRecord(name=name, **shard.counts(), bytes=part.stat().st_size, sha256=compute_sha256(part))
        self.records[name] = ShardRecord(record, contents=contents) if contents else record
        write_manifest(self.output, replace(self.plan, shards=self._list_records()), UNFINISHED)
        with disk_errors(self.output / name):
            publish(part, self.output / name)

    def _list_records(self) -> tuple[ShardRecord, ...]:
        return tuple(self.records[name] for name in sorted(self.records))

    def finish(self) -> Manifest:
        """Sums the counts and writes the manifest."""
        shards = self._list_records()
        counts = sum_counts(shards)
        assert counts.documents + counts.skipped == self.plan.documents, "documents out are not documents in"
        if not counts.documents:
            raise DataError(f"{self.plan.corpus.name}: no image can be read; {self.output / SKIPPED} lists them")
        for shard in shards:
            shard.pop("contents", None)
        manifest = replace(self.plan, counts=counts, shards=shards)
        write_manifest(self.output, manifest)
        (self.output / UNFINISHED).unlink()
        return manifest


def list_skipped(path: Path, shard: str, skipped: Iterable[SkippedDocument]) -> None:
    """Writes a shard's skipped documents to the list, in place of the entries from an earlier try of that shard."""
    rows = [{"id": d.doc_id, "image": d.image, "reason": d.reason, "shard": shard} for d in skipped]
    before = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
    others = [row for row in before if row["shard"] != shard]
    if not rows and len(others) == len(before):
        return
    if not rows and not others:
        path.unlink()
        return
    with atomic_write(path) as out:
        for row in sorted((*others, *rows), key=lambda row: row["shard"]):
            out.write(orjson.dumps(row) + b"\n")
