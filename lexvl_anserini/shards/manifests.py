"""The request of a call of encode, and what an earlier call left in its folder.

OUT/manifest.json     the shards are finished
OUT/unfinished.json   the plan of a call that was killed, with the shards that it finished

Several encoded corpora as one: what must be equal, the manifest of the whole, and the folders of parts.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lexvl_anserini.data.checks import CorpusSummary
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.claims import Claim, claim, compare_requests
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import compute_sha256, name_part, publish, read_json
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.manifest import MANIFEST, UNFINISHED, Counts, EncodedCorpus, Manifest, ShardRecord
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import VOCABULARY, QuantiserEntry, VocabularyEntry
from lexvl_anserini.ground.registry import RUNTIMES, TORCH
from lexvl_anserini.shards.layout import SUMMED, Layout, Part

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

# Packages whose versions decide the bytes of a shard.
VERSIONED = ("lexvl-anserini", "numpy", "sentence-transformers", "tokenizers", "torch", "transformers")

SKIPPED = "skipped.jsonl"
CONTENTS = "pictures, vectors or metadata"  # what the second digest of a corpus covers, in words


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


# Keys of a corpus that distinguish it from another.
IDENTITY = ("name", "split", "direction", "documents", "digest", "contents", "part")


def name_part_folder(part: Part) -> str:
    """`part-00003-of-00100`."""
    return f"part-{part.number:05}-of-{part.of:05}"


def list_part_folders(folder: Path) -> list[Path]:
    """The folders of shards in a folder: of all parts of a corpus, else the folder itself."""
    parts = sorted(folder.glob("part-*-of-*"))
    if not parts or (folder / MANIFEST).exists():
        return [folder]
    whole = [folder / name_part_folder(Part(number, len(parts))) for number in range(len(parts))]
    if parts != whole or not all((part / MANIFEST).is_file() for part in parts):
        raise ArtefactError(f"{folder}: parts that are not all encoded; run the same encode command again")
    return whole


def source_digest(manifest: Manifest) -> str:
    """Equal for shards of equal bytes (16 hex digits)."""
    return sha256("".join(str(shard.sha256) for shard in manifest.shards).encode()).hexdigest()[:16]


def check_same_meaning(first: Manifest, other: Manifest, where: Path) -> None:
    """Checks that the impacts of two corpora mean the same."""
    same = compare_requests(first.meaning(), other.meaning())
    if not same:
        hint = _describe_scale(first) if list(same.differing) == ["quantiser"] else ""
        raise ArtefactError(f"{where}: not as the other shards ({same}); their scores cannot be compared{hint}")


def _describe_scale(manifest: Manifest) -> str:
    sides = Quantiser.from_json(manifest.quantiser)
    options = [f"--quantiser fixed --scale {sides.document.scale!r}"]
    options += [f"--bits {sides.document.bits}"] if sides.document.bits else []
    options += [f"--query-bits {sides.query.bits}"] if sides.query.bits else []
    return f"; encode with {' '.join(options)}" if sides.document.scale else ""


def combine_manifests(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
    """The manifest of several corpora in one index, in their order."""
    first = manifests[0]
    digests: dict[str, Path] = {}
    for manifest, folder in zip(manifests, folders, strict=True):
        check_same_meaning(first, manifest, folder)
        digest = source_digest(manifest)
        if digest in digests:
            raise ArtefactError(f"{folder}: the same shards as {digests[digest]}; name each once")
        digests[digest] = folder
    if len(manifests) == 1:
        return first
    every = [manifest.counts for manifest in manifests]
    counts = Counts({name: sum(c[name] for c in every) for name in SUMMED if all(name in c for c in every)})
    if all(c.max_impact is not None for c in every):
        counts["max_impact"] = max(c["max_impact"] for c in every)
    shards = tuple(shard for manifest in manifests for shard in manifest.shards)
    corpus = merge_corpora([manifest.corpus for manifest in manifests], counts.documents)
    return replace(first, corpus=corpus, counts=counts, shards=shards)


def merge_corpora(corpora: Sequence[EncodedCorpus], documents: int) -> EncodedCorpus:
    """The entry of the whole: all parts of one corpus are that corpus, others are listed one by one."""
    base = {key: value for key, value in corpora[0].items() if key not in ("part", "parts", "contents")}
    parts = [part for corpus in corpora for part in corpus.parts or (corpus,)]
    missing = find_missing_parts(parts)
    if missing == [] and len(parts) == parts[0]["part"]["num"]:
        whole = {"documents": parts[0].documents, "digest": parts[0].digest}
        return EncodedCorpus({**base, **whole, **merge_contents(parts)})
    if missing:
        log.warning(
            "parts %s of %d of %s are not among these folders; the index lacks their documents",
            ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else ""),
            parts[0]["part"]["num"],
            parts[0].name,
        )
    listed = [{key: part[key] for key in IDENTITY if part.get(key) is not None} for part in parts]
    digest = sha256(orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return EncodedCorpus({**base, "documents": documents, "digest": digest, "parts": listed})


def find_missing_parts(corpora: Sequence[EncodedCorpus]) -> list[int] | None:
    """The numbers of the parts of one corpus that are not there; None where these are not parts of one corpus."""
    parts = [corpus.part for corpus in corpora if corpus.part]
    wholes = {(corpus.digest, part.num) for corpus, part in zip(corpora, parts, strict=False)}
    if len(parts) < len(corpora) or len(wholes) > 1:
        return None
    return sorted(set(range(parts[0].num)) - {part.id for part in parts})


def merge_contents(parts: Sequence[EncodedCorpus]) -> dict[str, str]:
    """The entry `contents` of parts together; none if a part has none."""
    contents = [part.contents for part in sorted(parts, key=lambda part: part.part.id if part.part else 0)]
    return {} if None in contents else {"contents": sha256("".join(map(str, contents)).encode()).hexdigest()}
