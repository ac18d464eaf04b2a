"""Several encoded corpora as one: what must agree, and the manifest of what they are together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.encoders import PLACES
from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.quantise import Quantiser
from lexvl_anserini.records import Manifest

# Counts of a manifest that add up.
SUMMED = ("documents", "skipped", "empty", "postings", "clipped", "dropped")

# Entries of a corpus that tell it from another.
IDENTITY = ("name", "split", "direction", "documents", "digest", "part")


def source_digest(manifest: Manifest) -> str:
    """Equal for shards of equal bytes (16 hex digits)."""
    return sha256("".join(str(shard["sha256"]) for shard in manifest.shards).encode()).hexdigest()[:16]


def refuse_other_making(first: Manifest, other: Manifest, where: Path) -> None:
    """Compares what decides whether two corpora's impacts mean the same.

    Raises:
        ArtefactError: kind, encoder, vocabulary or quantiser differ; the message names the first that does.
    """
    others = meaning(other)
    for name, ours in meaning(first).items():
        theirs = others[name]
        if ours != theirs:
            raise ArtefactError(
                f"{where}: {name} {_short(theirs)}, the others have {_short(ours)}; their scores cannot be compared"
                f"{_same_scale(first) if name == 'quantiser' else ''}"
            )


def meaning(manifest: Manifest) -> dict[str, Any]:
    """The parts of a manifest that impacts depend on, without where a checkpoint lies."""
    encoder = {key: value for key, value in manifest.encoder.items() if key != "checkpoint"}
    encoder["options"] = {key: value for key, value in (encoder.get("options") or {}).items() if key not in PLACES}
    return {
        "kind": manifest.kind,
        "encoder": encoder,
        "vocabulary": dict(manifest.vocabulary),
        "quantiser": Quantiser.from_json(manifest.quantiser).effect() if manifest.quantiser else {},
    }


def _same_scale(manifest: Manifest) -> str:
    """How a corpus is encoded to fit another."""
    sides = Quantiser.from_json(manifest.quantiser)
    options = [f"--quantiser fixed --scale {sides.document.scale!r}"]
    options += [f"--bits {sides.document.bits}"] if sides.document.bits else []
    options += [f"--query-bits {sides.query.bits}"] if sides.query.bits else []
    return f"; encode with {' '.join(options)}" if sides.document.scale else ""


def combined(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
    """The manifest of several corpora in one index, in their order.

    Raises:
        ArtefactError: as `refuse_other_making`, or the same shards come twice.
    """
    first = manifests[0]
    digests: dict[str, Path] = {}
    for manifest, folder in zip(manifests, folders, strict=True):
        refuse_other_making(first, manifest, folder)
        digest = source_digest(manifest)
        if digest in digests:
            raise ArtefactError(f"{folder}: the same shards as {digests[digest]}; name each once")
        digests[digest] = folder
    if len(manifests) == 1:
        return first
    counts = {
        name: sum(m.counts[name] for m in manifests) for name in SUMMED if all(name in m.counts for m in manifests)
    }
    if all("max_impact" in m.counts for m in manifests):
        counts["max_impact"] = max(m.counts["max_impact"] for m in manifests)
    shards = tuple(shard for manifest in manifests for shard in manifest.shards)
    corpus = combined_corpus([manifest.corpus for manifest in manifests], counts["documents"])
    return replace(first, corpus=corpus, counts=counts, shards=shards)


def combined_corpus(corpora: Sequence[Mapping[str, Any]], documents: int) -> dict[str, Any]:
    """The entry about the corpus: all parts of one are that corpus, others are listed one by one."""
    base = {key: value for key, value in corpora[0].items() if key not in ("part", "parts")}
    parts = [entry for corpus in corpora for entry in corpus.get("parts", [corpus])]
    if are_whole(parts):
        return {**base, **{key: parts[0][key] for key in ("documents", "digest")}}
    told = [{key: part[key] for key in IDENTITY if part.get(key) is not None} for part in parts]
    digest = sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {**base, "documents": documents, "digest": digest, "parts": told}


def are_whole(corpora: Sequence[Mapping[str, Any]]) -> bool:
    """True if these are all the parts of one corpus, each once."""
    parts = [corpus.get("part") for corpus in corpora]
    if not all(parts) or len({corpus.get("digest") for corpus in corpora}) > 1:
        return False
    return sorted(part["id"] for part in parts if part) == list(range(parts[0]["num"] if parts[0] else 0))


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 120 else text[:117] + "..."
