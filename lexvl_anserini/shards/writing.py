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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np
import orjson

from lexvl_anserini.data.checks import CorpusSummary
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.listing import listed, write_listing
from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import as_lexical, encode_inputs
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError
from lexvl_anserini.ground.files import (
    atomic_write,
    disk_errors,
    exclusive,
    file_sha256,
    make_folder,
    packed,
    publish,
    read_json,
    write_json,
)
from lexvl_anserini.ground.installed import versions_of
from lexvl_anserini.ground.manifest import MANIFEST, UNFINISHED, Counts, EncodedCorpus, Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, TooLargeImpact
from lexvl_anserini.ground.records import Document, ImpactQuery
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.ground.vocabulary import VOCABULARY
from lexvl_anserini.shards.corpus_plan import BLOCK_SIZE, CorpusPlan, PlannedPart, read_in_blocks
from lexvl_anserini.shards.corpus_reading import CorpusReading, reading_of
from lexvl_anserini.shards.covered import Covered, CoveredDigest
from lexvl_anserini.shards.layout import SHARD_WRITERS, Layout, Part, Shard, SkippedDocument, shard_stream

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

SKIPPED = "skipped.jsonl"

# What the second digest of a corpus covers, in words.
CONTENTS = "pictures, vectors or metadata"

# Counts of each shard that the manifest sums.
COUNTED = ("documents", "skipped", "empty", "postings", "clipped", "dropped")

# Number of documents that calibrate the quantiser: few, because they are encoded twice.
CALIBRATION_SAMPLE = 256
CALIBRATION_SEED = 20240307

# Packages whose versions decide the bytes of a shard.
VERSIONED = ("lexvl-anserini", "numpy", "sentence-transformers", "tokenizers", "torch", "transformers")


def encode_shard(
    documents: Sequence[Document],
    model: Encoder,
    quantiser: Quantiser,
    batch_size: int,
    progress: Progress,
    on_error: OnError = FAIL,
) -> Shard:
    """Encodes and quantises one shard's documents; skips documents with unreadable images if the policy is "skip".

    Raises:
        LexvlError: an impact would reach 2^24; the message names document and term.
    """
    if model.kind == "text":
        ids, metadata = [d.doc_id for d in documents], [d.metadata for d in documents]
        progress(len(ids))
        return Shard(ids, [model.document.read(d) for d in documents], None, metadata=metadata)
    read, vectors, skipped = encode_readable(documents, model, batch_size, progress, on_error)
    clipped = dropped = 0
    if model.kind == "impact":
        try:
            vectors, clipped, dropped = quantiser.documents(vectors)
        except TooLargeImpact as error:
            term = as_lexical(model.document).vocabulary.terms[error.dimension]
            raise LexvlError(f"document {read[error.row].doc_id!r}, term {term!r}: {error}") from error
    ids, contents = [d.doc_id for d in read], [d.contents or d.image or "" for d in read]
    return Shard(ids, contents, vectors, clipped, dropped, skipped, [d.metadata for d in read])


def encode_readable(
    documents: Sequence[Document],
    model: Encoder,
    batch_size: int,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> tuple[list[Document], Any, list[SkippedDocument]]:
    """Documents, the vector of each, and the documents that the policy skipped because their image is unreadable.

    Raises:
        DataError: an image cannot be read, and the policy is "fail".
    """
    policy = on_error.fresh()
    inputs = [model.document.read(document) for document in documents]
    vectors = encode_inputs(model.document, inputs, batch_size, progress, policy)
    unread = policy.skipped
    if not unread:
        return list(documents), vectors, []
    progress(len(unread))
    kept = np.ones(len(documents), dtype=bool)
    kept[[one.position for one in unread]] = False
    skipped = [SkippedDocument(documents[one.position].doc_id, one.reference, one.reason) for one in unread]
    return list(compress(documents, kept)), vectors[kept], skipped


def calibration_sample(documents: Iterable[Document], count: int) -> list[Document]:
    """At most `CALIBRATION_SAMPLE` documents drawn without replacement from all `count`, the same every time."""
    size = min(count, CALIBRATION_SAMPLE)
    chosen = np.sort(np.random.default_rng(CALIBRATION_SEED).choice(count, size, replace=False)).tolist()
    wanted = set(chosen)
    return [d for i, d in enumerate(islice(documents, chosen[-1] + 1)) if i in wanted]


def calibrated(
    quantiser: Quantiser, dataset: Dataset, count: int, model: Encoder, batch_size: int, on_error: OnError = FAIL
) -> Quantiser:
    """The quantiser with its document scale set from a sample of the whole corpus, if its scheme needs one.

    Raises:
        DataError: no image of the sample can be read.
    """
    if model.kind != "impact":
        return quantiser
    quantiser = for_model(quantiser, model)
    if quantiser.document.scheme != "calibrated":
        return quantiser
    sample = calibration_sample(dataset.documents(), count)
    read, weights, skipped = encode_readable(sample, model, batch_size, on_error=on_error)
    if not read:
        raise DataError(f"{dataset.name}: none of {len(sample)} images can be read; the first: {skipped[0].reason}")
    return quantiser.calibrate(weights)


def with_scale(plan: Manifest, dataset: Dataset, model: Encoder, batch_size: int, on_error: OnError) -> Manifest:
    """The plan with the scale of its impacts, if it has impacts."""
    if not plan.quantiser:
        return plan
    asked = Quantiser.from_json(plan.quantiser)
    ready = calibrated(asked, dataset, plan.corpus.documents, model, batch_size, on_error)
    return replace(plan, quantiser=ready.to_json())


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

    Raises:
        UsageError: more parts than documents.
        DataError: the corpus is malformed or empty, or an id occurs twice.
    """
    import torch

    check_count("batch_size", batch_size)
    listing = None if dataset.placed else listing
    if listing is not None:
        write_listing(dataset.documents(), listing)
    summary, blocks = read_in_blocks(listed(dataset, listing) if listing else dataset, block_size)
    Part(0, parts).span(summary.documents)
    quantiser, layout = quantiser or Quantiser(), (layout or Layout()).of_kind(model.kind)
    manifest = planned(dataset, summary, model, quantiser, layout, batch_size, None)
    manifest = with_scale(manifest, dataset, model, batch_size, OnError(on_error))
    return CorpusPlan(manifest, summary.images, parts, torch.get_num_threads(), block_size, blocks, listing)


def for_model(quantiser: Quantiser, model: Encoder) -> Quantiser:
    """The quantiser, with the scheme "binary" for each tower of the model whose weights are all 1."""
    return quantiser.for_towers(as_lexical(model.query).binary, as_lexical(model.document).binary)


def planned(
    dataset: Dataset,
    summary: CorpusSummary,
    model: Encoder,
    quantiser: Quantiser,
    layout: Layout,
    batch_size: int,
    part: Part | None,
) -> Manifest:
    """The part of the manifest that is known before anything is encoded."""
    lexical = model.kind == "impact"
    vocabulary = as_lexical(model.document).vocabulary if lexical else None
    if vocabulary is not None and as_lexical(model.query).vocabulary.digest != vocabulary.digest:
        raise ArtefactError(f"encoder {model.name!r}: query and document towers have different vocabularies")
    return Manifest(
        kind=model.kind,
        encoder=model.identity(),
        quantiser=for_model(quantiser, model).to_json() if lexical else {},
        vocabulary={"size": len(vocabulary), "digest": vocabulary.digest} if vocabulary is not None else {},
        corpus=EncodedCorpus(
            name=dataset.name,
            split=dataset.split,
            data_dir=dataset.data_dir,
            escape_ids=dataset.escape_ids,
            direction=dataset.direction,
            documents=summary.documents,
            digest=summary.digest,
            **({} if part is None else part_of_corpus(part, summary.documents)),
        ),
        counts=Counts(),
        layout=layout.to_json(),
        versions={**versions_of(VERSIONED), **circumstances(model, batch_size)},
    )


def with_contents(plan: Manifest, reading: CorpusReading, covered: Covered, images: int) -> Manifest:
    """The plan with the digest of the pictures, vectors and stored metadata of its documents, if they have any.

    Raises:
        DataError: metadata that cannot be stored.
    """
    if not covered.applies(images):
        return plan
    digest = CoveredDigest(covered)
    digest.add(reading.own(plan))
    contents = digest.hexdigest()
    return plan if contents is None else replace(plan, corpus=EncodedCorpus({**plan.corpus, "contents": contents}))


def part_of_corpus(part: Part, documents: int) -> dict[str, Any]:
    """The manifest's entry of a part; `documents` and `digest` beside it describe the whole corpus."""
    first, count = part.span(documents)
    return {"part": {"id": part.number, "num": part.of, "first": first, "documents": count}}


def circumstances(model: Encoder, batch_size: int) -> dict[str, str]:
    """Device, batch size and another runtime's version: besides versions, they decide the last bits of weights."""
    device, runtime = getattr(model, "device", None), getattr(model, "options", {}).get("runtime")
    made = {"device": device, "batch_size": str(batch_size)} if device and model.kind != "text" else {}
    return {**made, **versions_of(["onnxruntime"] if runtime == "onnx" else [])}


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
    part: Part | PlannedPart | None = None,
) -> Manifest:
    """Encodes a corpus, or a part of it, into shards of the model's kind (impact, dense or text).

    Args:
        dataset: its documents are read to check them (the command begins this read, `begun`), to calibrate, to encode.
        output: a new folder, an unfinished one of the same request (resumed), or a finished one (unchanged, except that
            missing or incomplete shards are encoded again).
        quantiser: for lexical models; the default calibrates documents to 8 bits and gives queries up to 8 bits.
        batch_size: texts per forward pass; never crosses a shard.
        overwrite: replace shards of another request.
        progress: called with the number of documents just done.
        on_error: for images that cannot be read: "fail", or "skip" (skipped, counted, listed in skipped.jsonl).
        part: encode only this part of the corpus. All parts use the scale from the sample of the whole corpus, so that
            they can be merged. A part of a plan (`plan_corpus`) reads its own documents alone; its shards and manifest
            are the same.

    Returns:
        The manifest; its counts of documents and of skipped ones sum to the documents of the corpus or part.

    Raises:
        UsageError: another `on_error`, or no such part.
        DataError: the corpus is malformed or empty, or an id occurs twice.
        ArtefactError: the output holds something else, the disk is full, or the corpus changed meanwhile.
    """
    check_count("batch_size", batch_size)
    output, policy = Path(output), OnError(on_error)
    layout = (layout or Layout()).of_kind(model.kind)
    reading = reading_of(dataset, part)
    summary = reading.summary()
    plan = planned(dataset, summary, model, quantiser or Quantiser(), layout, batch_size, reading.part)
    if isinstance(part, PlannedPart):
        plan = replace(plan, quantiser=part.plan.scale_for(plan, output))
    with disk_errors(output):
        make_folder(output)
    with FileDigests() as files, exclusive(output):
        covered = Covered(model.document, layout.metadata, files)
        plan = with_contents(plan, reading, covered, summary.images)
        found = previous(output, plan, overwrite, on_error)
        if found is not None and is_complete(output):
            log.info("%s: finished already, nothing to do", output)
            progress(plan.documents)
            return found
        if found is None or found.corpus.contents not in (None, plan.corpus.contents):
            plan = plan if isinstance(part, PlannedPart) else with_scale(plan, dataset, model, batch_size, policy)
            found = written_plan(output, found, plan, overwrite)
        plan = fill(output, found, reading, model, layout, batch_size, progress, policy, covered)
        return finish(output, plan)


def previous(output: Path, plan: Manifest, overwrite: bool, on_error: str = "fail") -> Manifest | None:
    """The manifest or plan of an earlier call in `output`; None for an empty folder, or one that this call clears.

    Raises:
        ArtefactError: the folder holds shards of another request and `overwrite` is False, or something else.
    """
    names = {path.name for path in output.iterdir()}
    state = next((name for name in (MANIFEST, UNFINISHED) if name in names), None)
    if state is None:
        if names - {f"{UNFINISHED}.part"}:
            raise ArtefactError(f"{output}: not empty and not written by encode; name another --output")
        return None
    found = Manifest.from_json(read_json(output / state, "manifest"), str(output / state))
    if state == MANIFEST and not all(sized(output, shard) for shard in found.shards):
        publish(output / MANIFEST, output / UNFINISHED)
        state = UNFINISHED
    wanted, made = plan.request(), found.request()
    if plan.corpus.contents and not found.corpus.contents:
        log.info("%s: an older version wrote it, whose digest does not cover pixels, vectors and metadata", output)
        del wanted["corpus"]["contents"]
    for request in (wanted, made):
        request["texts"], request[CONTENTS] = (request["corpus"].pop(key, None) for key in ("digest", "contents"))
    if state == UNFINISHED:
        wanted["versions"], made["versions"] = plan.versions, found.versions
        if all(shard.get("contents") for shard in found.shards):
            made[CONTENTS] = wanted[CONTENTS]  # `fill` compares them shard by shard
    if on_error == "fail" and (without := sum(shard.get("skipped", 0) for shard in found.shards)):
        wanted["skipped"] = "no document"
        made["skipped"] = f"{without} documents whose images cannot be read, see {SKIPPED}; --on-error skip accepts it"
    what = "shards" if state == MANIFEST else "unfinished shards"
    # A plan without a finished shard has cost no time: another request replaces it.
    replaceable = overwrite or (state == UNFINISHED and not found.shards)
    if claim(output, what, wanted, made, replaceable) is not Claim.FRESH:
        return found
    clear(output)
    return None


def written_plan(output: Path, found: Manifest | None, plan: Manifest, overwrite: bool) -> Manifest:
    """Writes the plan, with the shards of an unfinished folder that still count, and returns it."""
    plan = replace(plan, shards=kept_shards(output, found, plan, overwrite))
    write_json(output / UNFINISHED, plan.to_json())
    return plan


def is_complete(output: Path) -> bool:
    """Whether a manifest says that the shards are finished; a plan that a killed call left beside it is removed."""
    if not (output / MANIFEST).is_file():
        return False
    # Only what is there: on a read-only disk a removal fails even of nothing.
    if (output / UNFINISHED).exists():
        (output / UNFINISHED).unlink()
    return True


def kept_shards(output: Path, found: Manifest | None, plan: Manifest, overwrite: bool) -> tuple[Mapping[str, Any], ...]:
    """The shards of an unfinished folder that still count although pictures, vectors or metadata changed since then.

    `fill` encodes those again whose own documents changed. None counts if the scale of the impacts changed.

    Raises:
        ArtefactError: the scale changed, and `overwrite` is False.
    """
    if found is None or not found.shards:
        return ()
    if found.quantiser == plan.quantiser:
        return found.shards
    if not overwrite:
        raise ArtefactError(
            f"{output}: {CONTENTS} of the sample that calibrates impacts changed, and with them the scale of the "
            "unfinished shards; --overwrite replaces these"
        )
    clear(output)
    return ()


def clear(output: Path) -> None:
    """Removes what encode writes; if it is interrupted, the folder counts as unfinished, not as finished or foreign."""
    if (output / MANIFEST).is_file():
        publish(output / MANIFEST, output / UNFINISHED)
    if (output / "docs").is_dir():
        shutil.rmtree(output / "docs")
    for part in output.glob("*.part"):
        part.unlink()
    for name in (VOCABULARY, SKIPPED, UNFINISHED):
        (output / name).unlink(missing_ok=True)


def fill(
    output: Path,
    plan: Manifest,
    reading: CorpusReading,
    model: Encoder,
    layout: Layout,
    batch_size: int,
    progress: Progress,
    on_error: OnError,
    covered: Covered,
) -> Manifest:
    """Encodes the shards that the plan does not record as done, or whose pictures, vectors or metadata changed since.

    What was encoded is digested after it was encoded, so that a change between the first reading and this one is seen.

    Raises:
        ArtefactError: the documents differ from those that were checked; all shards are removed.
    """
    if plan.shards:
        log.info("%s: resuming after %d finished shards", output, len(plan.shards))
    quantiser = Quantiser.from_json(plan.quantiser) if plan.quantiser else Quantiser()
    with disk_errors(output):
        make_folder(output / "docs")
    vocabulary = as_lexical(model.document).vocabulary if model.kind == "impact" else None
    if vocabulary is not None:
        vocabulary.write(output / VOCABULARY)
    done = {shard["name"]: shard for shard in plan.shards if as_recorded(output, shard)}
    plan = replace(plan, shards=tuple(done.values()))
    write = SHARD_WRITERS[model.kind, layout.shard_format]
    contents, mine, number = CoveredDigest(covered), reading.own(plan), 0
    while batch := list(islice(mine, layout.shard_size)):
        name = layout.name(number)
        number += 1
        if name in done and done[name].get("contents") in (None, CoveredDigest(covered).add(batch)):
            progress(len(batch))
            shard = None
        else:
            shard = encode_shard(batch, model, quantiser, batch_size, progress, on_error)
        covers = contents.add(batch) if plan.corpus.contents else None
        if shard is not None:
            plan = add_shard(output, plan, name, shard, covers, lambda out, one: write(out, one, vocabulary, layout))
    if not reading.is_unchanged() or contents.hexdigest() != plan.corpus.contents:
        clear(output)
        raise ArtefactError(
            f"{output}: the corpus changed while it was read; all shards are removed, run the same command again"
        )
    return plan


def add_shard(
    output: Path,
    plan: Manifest,
    name: str,
    shard: Shard,
    contents: str | None,
    write: Callable[[IO[bytes], Shard], None],
) -> Manifest:
    """Writes a shard under a temporary name, records it in the plan, then gives it its name."""
    part = output / (Path(name).name + ".part")
    with disk_errors(part):
        try:
            with shard_stream(part, name.endswith(".gz")) as out:
                write(out, shard)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    list_skipped(output / SKIPPED, name, shard.skipped)
    record = {"name": name, **shard.counts(), "bytes": part.stat().st_size, "sha256": file_sha256(part)}
    record |= {"contents": contents} if contents else {}
    others = (other for other in plan.shards if other["name"] != name)
    plan = replace(plan, shards=tuple(sorted((*others, record), key=lambda shard: shard["name"])))
    write_json(output / UNFINISHED, plan.to_json())
    publish(part, output / name)
    return plan


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


def sized(output: Path, shard: Mapping[str, Any]) -> bool:
    """True if a recorded shard is on disk with its number of bytes."""
    path = output / shard["name"]
    return path.is_file() and path.stat().st_size == shard["bytes"]


def as_recorded(output: Path, shard: Mapping[str, Any]) -> bool:
    """True if a recorded shard is on disk as recorded; a complete `.part` file of the shard gets its name first."""
    path = output / shard["name"]
    part = output / (path.name + ".part")
    if not path.is_file() and part.is_file() and file_sha256(part) == shard["sha256"]:
        publish(part, path)
    if sized(output, shard) and file_sha256(path) == shard["sha256"]:
        return True
    log.warning("%s: not as recorded; encoding it again", path)
    return False


def finish(output: Path, plan: Manifest) -> Manifest:
    """Sums the counts and writes the manifest.

    Raises:
        DataError: no document can be read.
    """
    keys = [key for key in COUNTED if any(key in shard for shard in plan.shards)]
    counts = Counts({key: sum(shard.get(key, 0) for shard in plan.shards) for key in keys})
    if any("max_impact" in shard for shard in plan.shards):
        counts["max_impact"] = max(shard["max_impact"] for shard in plan.shards)
    assert counts.documents + counts.skipped == plan.documents, "documents out are not documents in"
    if not counts.documents:
        raise DataError(f"{plan.corpus.name}: no image can be read; {output / SKIPPED} lists them")
    shards = [{key: value for key, value in shard.items() if key != "contents"} for shard in plan.shards]
    manifest = replace(plan, counts=counts, shards=tuple(shards))
    write_json(output / MANIFEST, manifest.to_json())
    (output / UNFINISHED).unlink()
    return manifest


def write_queries(queries: Iterable[ImpactQuery], output: Path, texts: Iterable[str] | None = None) -> int:
    """Writes queries as JSON lines `{"id","contents","vector"}`, gzip if the name ends in .gz; returns their number.

    Args:
        queries: in the order of the lines.
        output: the file.
        texts: one for each query, its `contents`; without them, `contents` is empty.
    """
    with atomic_write(output) as out:
        return query_lines(queries, repeat("") if texts is None else texts, out, output.suffix)


def query_lines(queries: Iterable[ImpactQuery], texts: Iterable[str], out: BinaryIO, suffix: str) -> int:
    """The lines of `write_queries` into an open file whose name has that suffix; returns their number."""
    count = 0
    with packed(out, suffix) as lines:
        for query, text in zip(queries, texts, strict=not isinstance(texts, repeat)):
            lines.write(orjson.dumps({"id": query.query_id, "contents": text, "vector": query.vector}) + b"\n")
            count += 1
    return count
