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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.images import OnError
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.claims import Claim, report_finished
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import atomic_write, compute_sha256, disk_errors, exclusive, make_folder, publish
from lexvl_anserini.ground.manifest import UNFINISHED, Manifest, ShardRecord, write_manifest
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import VOCABULARY
from lexvl_anserini.ground.typed import check_count, check_type
from lexvl_anserini.shards.encoding import CorpusReading, Covered, CoveredDigest, PartOfPlan, WholeCorpus, encode_shard
from lexvl_anserini.shards.layout import SHARD_WRITERS, Layout, Part, Shard, SkippedDocument, shard_stream, sum_counts
from lexvl_anserini.shards.manifests import SKIPPED, claim_on_shards, clear, is_recorded, request_shards, select_valid

log = logging.getLogger(__name__)


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


    Raises:
        UsageError: another `on_error`, or no such part.
        DataError: the corpus is malformed or empty, or an id occurs twice.
        ArtefactError: the output holds something else, the disk is full, or the corpus changed meanwhile.
    """
    check_arguments(dataset, model, output, batch_size)
    output, policy = Path(output), OnError(on_error)
    reading = WholeCorpus(dataset, part) if part is None or isinstance(part, Part) else part(dataset)
    layout = (layout or Layout()).fit_kind(model.kind)
    with FileDigests() as files:
        covered = Covered(model.document, layout.metadata, files)
        summary = reading.check(covered)
        request = request_shards(dataset, summary, model, quantiser or Quantiser(), layout, batch_size, reading.part)
        request = reading.settle(request, output)
        with disk_errors(output):
            make_folder(output)
        with exclusive(output):
            claim, plan = claim_on_shards(output, request, overwrite, on_error)
            if claim is Claim.DONE and plan is not None:
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
