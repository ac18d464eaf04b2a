"""Vectors on disk: deterministic shards, resumed where they stopped, with a manifest beside them.

    OUT/docs/shard-00000.jsonl   what stock Anserini indexes (it reads every file of its folder, hence `docs/`)
    OUT/vocab.txt                one term a line, in the order of dimensions (impact shards only)
    OUT/manifest.json            appears when everything is there; until then OUT/unfinished.json keeps the plan

The plan is written first and removed last: a folder with neither plan nor manifest is not ours. A shard is written
under a temporary name, recorded in the plan, then renamed: killed at any byte and started again, the same command
leaves the same bytes and encodes no finished shard twice.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from lexvl_anserini.cli import Progress, silent
from lexvl_anserini.data.base import Dataset
from lexvl_anserini.data.checks import CorpusSummary, check_corpus, document_bytes
from lexvl_anserini.encoders import PLACES
from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.files import (
    atomic_write,
    exclusive,
    file_sha256,
    packed,
    publish,
    read_json,
    told_about_disk,
    write_json,
)
from lexvl_anserini.quantise import Quantiser
from lexvl_anserini.records import MANIFEST, Document, ImpactQuery, Manifest
from lexvl_anserini.shards import SHARD_WRITERS, Layout, Shard, shard_stream
from lexvl_anserini.vocabulary import VOCABULARY, Vocabulary

if TYPE_CHECKING:
    from lexvl_anserini.encoders.base import Encoder

log = logging.getLogger(__name__)

UNFINISHED = "unfinished.json"

# Documents that calibrate the quantiser: encoded once more than the rest, hence few.
CALIBRATION_SAMPLE = 256
CALIBRATION_SEED = 20240307

# What decides the bytes of a shard besides our own code.
VERSIONED = ("lexvl-anserini", "numpy", "sentence-transformers", "tokenizers", "torch", "transformers")


def encode_shard(
    documents: Sequence[Document], model: Encoder, quantiser: Quantiser, batch_size: int, progress: Progress
) -> Shard:
    """Encodes and quantises one shard's documents."""
    ids, texts = [d.doc_id for d in documents], [model.document.read(d) for d in documents]
    if model.kind == "text":
        progress(len(ids))
        return Shard(ids, texts, None)
    if model.kind == "dense":
        return Shard(ids, texts, model.document.vectors(texts, batch_size, progress))
    impacts, clipped, dropped = quantiser.documents(model.document.weights(texts, batch_size, progress))
    return Shard(ids, texts, impacts, clipped, dropped)


def calibration_sample(documents: Iterable[Document], count: int) -> list[Document]:
    """At most `CALIBRATION_SAMPLE` documents drawn without replacement from all `count`, the same every time."""
    size = min(count, CALIBRATION_SAMPLE)
    chosen = np.sort(np.random.default_rng(CALIBRATION_SEED).choice(count, size, replace=False)).tolist()
    wanted = set(chosen)
    return [d for i, d in enumerate(islice(documents, chosen[-1] + 1)) if i in wanted]


def calibrated(quantiser: Quantiser, dataset: Dataset, count: int, model: Encoder, batch_size: int) -> Quantiser:
    """The quantiser with its document scale set from a sample of the corpus, if its scheme needs one."""
    if model.kind != "impact":
        return quantiser
    quantiser = quantiser.for_towers(model.query.binary, model.document.binary)
    if quantiser.document.scheme != "calibrated":
        return quantiser
    texts = [model.document.read(d) for d in calibration_sample(dataset.documents(), count)]
    return quantiser.calibrate(model.document.weights(texts, batch_size))


def versions() -> dict[str, str]:
    """Installed versions of what decides the bytes."""
    found = {}
    for package in VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def making(manifest: Manifest) -> dict[str, Any]:
    """What was asked for: equal makings give equal shards (on one machine with equal versions)."""
    quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else None
    # Where a checkpoint or a data set lies does not matter; what is in them does.
    encoder = {key: value for key, value in manifest.encoder.items() if key != "checkpoint"}
    encoder["options"] = {key: value for key, value in encoder.get("options", {}).items() if key not in PLACES}
    corpus = {key: value for key, value in manifest.corpus.items() if key != "data_dir"}
    return {
        "kind": manifest.kind,
        "encoder": encoder,
        "corpus": corpus,
        "layout": dict(manifest.layout),
        "vocabulary": dict(manifest.vocabulary),
        "quantiser": quantiser and {"document": quantiser.document.requested(), "query": quantiser.query.requested()},
    }


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The entries in which two makings differ, for an error."""
    return "; ".join(
        f"{key}: {_short(theirs.get(key))} there, {_short(ours.get(key))} asked for"
        for key in ours
        if ours[key] != theirs.get(key)
    )


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 160 else text[:157] + "..."


def planned(dataset: Dataset, summary: CorpusSummary, model: Encoder, quantiser: Quantiser, layout: Layout) -> Manifest:
    """The manifest as far as it is known before anything is encoded."""
    lexical = model.kind == "impact"
    vocabulary: Vocabulary | None = model.document.vocabulary if lexical else None
    if vocabulary is not None and model.query.vocabulary.digest != vocabulary.digest:
        raise ArtefactError(f"encoder {model.name!r}: query and document towers have different vocabularies")
    return Manifest(
        kind=model.kind,
        encoder=model.identity(),
        quantiser=quantiser.for_towers(model.query.binary, model.document.binary).to_json() if lexical else {},
        vocabulary={"size": len(vocabulary), "digest": vocabulary.digest} if vocabulary is not None else {},
        corpus={
            "name": dataset.name,
            "split": dataset.split,
            "data_dir": dataset.data_dir,
            "escape_ids": dataset.escape_ids,
            "direction": dataset.direction,
            "documents": summary.documents,
            "digest": summary.digest,
        },
        counts={},
        layout=layout.to_json(),
        versions=versions(),
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of finished shards or of an index.

    Raises:
        ArtefactError: no such folder, unfinished, or not ours.
    """
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; encode a corpus first")
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / UNFINISHED).is_file():
            raise ArtefactError(f"{folder}: unfinished; run the same encode command again, it resumes")
        raise ArtefactError(f"{folder}: no manifest.json; expected a folder written by encode or index")
    return Manifest.from_json(read_json(path, "manifest"), str(path))


def write_impacts(
    dataset: Dataset,
    model: Encoder,
    output: Path,
    quantiser: Quantiser | None = None,
    layout: Layout | None = None,
    batch_size: int = 32,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Encodes a corpus into shards of the model's kind (impact, dense or text).

    Args:
        dataset: its documents are read three times: to check them, to calibrate, to encode.
        output: a new folder, an unfinished one of the same making (resumed), or a finished one (left as it is, unless
            a shard is missing or cut: then that one is encoded again).
        quantiser: of lexical models; default documents calibrated to 8 bits, queries up to 8 bits.
        batch_size: texts per forward pass; never crosses a shard.
        overwrite: replace shards of another making.
        progress: called with the number of documents just done.

    Returns:
        The manifest; its counts are of documents in = documents out.

    Raises:
        DataError: the corpus is malformed, empty, or an id comes twice.
        ArtefactError: the output holds something else, the disk is full, or the corpus changed meanwhile.
    """
    layout = (layout or Layout()).of_kind(model.kind)
    summary = check_corpus(dataset.documents, dataset.name)
    plan = planned(dataset, summary, model, quantiser or Quantiser(), layout)
    with told_about_disk(output):
        output.mkdir(parents=True, exist_ok=True)
    with exclusive(output):
        found = previous(output, plan, overwrite)
        if found is not None and (output / MANIFEST).is_file():
            log.info("%s: finished already, nothing to do", output)
            (output / UNFINISHED).unlink(missing_ok=True)
            progress(summary.documents)
            return found
        if found is not None:
            plan = found
            log.info("%s: resuming after %d finished shards", output, len(plan.shards))
        else:
            ready = calibrated(quantiser or Quantiser(), dataset, summary.documents, model, batch_size)
            plan = replace(plan, quantiser=ready.to_json() if model.kind == "impact" else {})
            write_json(output / UNFINISHED, plan.to_json())
        with told_about_disk(output):
            (output / "docs").mkdir(exist_ok=True)
        if model.kind == "impact":
            model.document.vocabulary.write(output / VOCABULARY)
        plan = fill(output, plan, dataset, model, layout, batch_size, progress)
        return finish(output, plan)


def previous(output: Path, plan: Manifest, overwrite: bool) -> Manifest | None:
    """What an earlier call left in `output`: None if nothing (or it was cleared), else its manifest or plan.

    Raises:
        ArtefactError: something of another making, and not told to overwrite; or a folder that is not ours.
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
    told = difference(making(plan), making(found))
    if not told and state == UNFINISHED and found.versions != plan.versions:
        told = difference({"versions": plan.versions}, {"versions": found.versions})
    if not told:
        return found
    if not overwrite:
        what = "shards" if state == MANIFEST else "unfinished shards"
        raise ArtefactError(f"{output}: holds {what} of another making ({told}); --overwrite replaces them")
    clear(output)
    return None


def clear(output: Path) -> None:
    """Removes what encode writes; what is left of half a clearing looks unfinished, neither finished nor foreign."""
    if (output / MANIFEST).is_file():
        publish(output / MANIFEST, output / UNFINISHED)
    if (output / "docs").is_dir():
        shutil.rmtree(output / "docs")
    for part in output.glob("*.part"):
        part.unlink()
    for name in (VOCABULARY, UNFINISHED):
        (output / name).unlink(missing_ok=True)


def fill(
    output: Path, plan: Manifest, dataset: Dataset, model: Encoder, layout: Layout, batch_size: int, progress: Progress
) -> Manifest:
    """Encodes the shards that the plan does not record as done.

    Raises:
        ArtefactError: the documents are not those that were checked; nothing of them is kept.
    """
    quantiser = Quantiser.from_json(plan.quantiser) if plan.quantiser else Quantiser()
    vocabulary = model.document.vocabulary if model.kind == "impact" else None
    done = {shard["name"]: shard for shard in plan.shards if stands(output, shard)}
    plan = replace(plan, shards=tuple(done.values()))
    write = SHARD_WRITERS[model.kind, layout.shard_format]
    documents = dataset.documents()
    read = sha256()
    number = 0
    while batch := list(islice(documents, layout.shard_size)):
        read.update(b"".join(map(document_bytes, batch)))
        name = layout.name(number)
        number += 1
        if name in done:
            progress(len(batch))
            continue
        shard = encode_shard(batch, model, quantiser, batch_size, progress)
        part = output / (Path(name).name + ".part")
        with told_about_disk(part):
            try:
                with shard_stream(part, layout.compress) as out:
                    write(out, shard, vocabulary, layout.contents)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        record = {"name": name, **shard.counts(), "bytes": part.stat().st_size, "sha256": file_sha256(part)}
        plan = replace(plan, shards=tuple(sorted((*plan.shards, record), key=lambda shard: shard["name"])))
        write_json(output / UNFINISHED, plan.to_json())
        publish(part, output / name)
    if read.hexdigest() != plan.corpus["digest"]:
        clear(output)
        raise ArtefactError(f"{output}: the corpus changed while it was read; nothing was kept, encode it again")
    return plan


def sized(output: Path, shard: Mapping[str, Any]) -> bool:
    """True if a recorded shard is on disk with its number of bytes."""
    path = output / shard["name"]
    return path.is_file() and path.stat().st_size == shard["bytes"]


def stands(output: Path, shard: Mapping[str, Any]) -> bool:
    """True if a recorded shard is on disk as recorded; one that was only lacking its rename gets it."""
    path = output / shard["name"]
    part = output / (path.name + ".part")
    if not path.is_file() and part.is_file() and file_sha256(part) == shard["sha256"]:
        publish(part, path)
    if sized(output, shard) and file_sha256(path) == shard["sha256"]:
        return True
    log.warning("%s: not as recorded; encoding it again", path)
    return False


def finish(output: Path, plan: Manifest) -> Manifest:
    """Sums the counts and gives the folder its manifest."""
    keys = [
        key for key in ("documents", "empty", "postings", "clipped", "dropped") if any(key in s for s in plan.shards)
    ]
    counts = {key: sum(shard[key] for shard in plan.shards) for key in keys}
    if any("max_impact" in shard for shard in plan.shards):
        counts["max_impact"] = max(shard["max_impact"] for shard in plan.shards)
    assert counts["documents"] == plan.corpus["documents"], "documents out are not documents in"
    manifest = replace(plan, counts=counts)
    write_json(output / MANIFEST, manifest.to_json())
    (output / UNFINISHED).unlink()
    return manifest


def write_queries(queries: Iterable[ImpactQuery], output: Path) -> int:
    """Encoded queries as JSON lines `{"id","contents","vector"}`, gzipped if the name ends in .gz; their number."""
    count = 0
    with atomic_write(output) as whole, packed(whole, output.suffix == ".gz") as out:
        for query in queries:
            out.write(orjson.dumps({"id": query.query_id, "contents": "", "vector": query.vector}) + b"\n")
            count += 1
    return count
