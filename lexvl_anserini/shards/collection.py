"""Several encoded corpora as one: what must be equal, the manifest of the whole, and the folders of parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import orjson

from lexvl_anserini.ground.claims import same_request
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import MANIFEST, Counts, EncodedCorpus, Manifest
from lexvl_anserini.shards.layout import Part

log = logging.getLogger(__name__)

# Missing parts that a warning names.
NAMED = 5

# Counts of a manifest that add up.
SUMMED = ("documents", "skipped", "empty", "postings", "clipped", "dropped")

# Keys of a corpus that distinguish it from another.
IDENTITY = ("name", "split", "direction", "documents", "digest", "contents", "part")


def part_name(part: Part) -> str:
    """`part-00003-of-00100`."""
    return f"part-{part.number:05}-of-{part.of:05}"


def part_folders(folder: Path) -> list[Path]:
    """The folders of shards in a folder: of all parts of a corpus, else the folder itself.

    Raises:
        ArtefactError: parts are missing or unfinished.
    """
    parts = sorted(folder.glob("part-*-of-*"))
    if not parts or (folder / MANIFEST).exists():
        return [folder]
    whole = [folder / part_name(Part(number, len(parts))) for number in range(len(parts))]
    if parts != whole or not all((part / MANIFEST).is_file() for part in parts):
        raise ArtefactError(f"{folder}: parts that are not all encoded; run the same encode command again")
    return whole


def source_digest(manifest: Manifest) -> str:
    """Equal for shards of equal bytes (16 hex digits)."""
    return sha256("".join(str(shard["sha256"]) for shard in manifest.shards).encode()).hexdigest()[:16]


def check_same_meaning(first: Manifest, other: Manifest, where: Path) -> None:
    """Checks that the impacts of two corpora mean the same.

    Raises:
        ArtefactError: kind, encoder, vocabulary or quantiser differ; the message names what differs.
    """
    same = same_request(first.meaning(), other.meaning())
    if not same:
        hint = _same_scale(first) if list(same.differing) == ["quantiser"] else ""
        raise ArtefactError(f"{where}: not as the other shards ({same}); their scores cannot be compared{hint}")


def _same_scale(manifest: Manifest) -> str:
    """How to encode a corpus with the scale of another."""
    from lexvl_anserini.ground.quantise import Quantiser  # it loads scipy, which `index --help` does without

    sides = Quantiser.from_json(manifest.quantiser)
    options = [f"--quantiser fixed --scale {sides.document.scale!r}"]
    options += [f"--bits {sides.document.bits}"] if sides.document.bits else []
    options += [f"--query-bits {sides.query.bits}"] if sides.query.bits else []
    return f"; encode with {' '.join(options)}" if sides.document.scale else ""


def combined(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
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
    corpus = combined_corpus([manifest.corpus for manifest in manifests], counts.documents)
    return replace(first, corpus=corpus, counts=counts, shards=shards)


def combined_corpus(corpora: Sequence[EncodedCorpus], documents: int) -> EncodedCorpus:
    """The entry of the whole: all parts of one corpus are that corpus, others are listed one by one."""
    base = {key: value for key, value in corpora[0].items() if key not in ("part", "parts", "contents")}
    parts = [EncodedCorpus(entry) for corpus in corpora for entry in corpus.get("parts", [corpus])]
    missing = missing_parts(parts)
    if missing == [] and len(parts) == parts[0]["part"]["num"]:
        return EncodedCorpus({**base, "documents": parts[0].documents, "digest": parts[0].digest, **contents_of(parts)})
    if missing:
        log.warning(
            "parts %s of %d of %s are not among these folders; the index lacks their documents",
            ", ".join(map(str, missing[:NAMED])) + (", ..." if len(missing) > NAMED else ""),
            parts[0]["part"]["num"],
            parts[0].name,
        )
    listed = [{key: part[key] for key in IDENTITY if part.get(key) is not None} for part in parts]
    digest = sha256(orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return EncodedCorpus({**base, "documents": documents, "digest": digest, "parts": listed})


def missing_parts(corpora: Sequence[EncodedCorpus]) -> list[int] | None:
    """The numbers of the parts of one corpus that are not there; None where these are not parts of one corpus."""
    parts = [corpus.part for corpus in corpora if corpus.part]
    wholes = {(corpus.digest, part.num) for corpus, part in zip(corpora, parts, strict=False)}
    if len(parts) < len(corpora) or len(wholes) > 1:
        return None
    return sorted(set(range(parts[0].num)) - {part.id for part in parts})


def contents_of(parts: Sequence[EncodedCorpus]) -> dict[str, str]:
    """The entry `contents` of parts together; none if a part has none."""
    contents = [part.contents for part in sorted(parts, key=lambda part: part.part.id if part.part else 0)]
    return {} if None in contents else {"contents": sha256("".join(map(str, contents)).encode()).hexdigest()}
