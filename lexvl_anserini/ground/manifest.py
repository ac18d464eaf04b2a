"""What made an artefact: the manifest beside shards, an index or a run.

    FOLDER/manifest.json     of shards, and of the index that is built from them: a `Manifest`
    RUN.manifest.json        of a run, see `run_manifest`

A manifest has entries (`EncoderRef`, `EncodedCorpus`, `Counts`) with typed fields. An entry keeps the keys of the file
in their order, so that an entry that is read and written again has the same bytes.

`Manifest.request` is what decides the bytes of an artefact, which `claims` compares with the request of a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Self

from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import atomic_write, json_bytes, read_json, sync_path, sync_to
from lexvl_anserini.ground.typed import Entry, Key, check

# The file of a `Manifest`, and the file that holds the same while the shards are not complete.
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"

# The name of the encoder of vectors that were imported without one.
NO_ENCODER = "none"

# The name of the encoder of an index of several fields, whose encoders the entry `fields` has.
FIELDS = "fields"

# A shard is a file in `docs/`, wherever the folder came from.
SHARD_NAME = re.compile(r"docs/[^/\0]+")

# Keys of a corpus, and options of an encoder, that 0.3.0 is the last version to read, and what they say.
GONE = {"exif": "EXIF metadata", "languages": "queries in other languages", "taught": "taught words"}

# Options that name the folder of a part of an encoder. The checkpoint's digest covers the content of that folder.
PLACES = ("tokenizer", "backbone_config", "query_checkpoint", "backbone_checkpoint", "merges")


@dataclass(frozen=True)
class CorpusRef:
    """Which dataset: everything that `load_dataset` needs to load it.

    name        `demo`, `beir/scifact`, `folder:<path>`, ...
    split       of topics and qrels; None for the dataset's default, "" where the dataset has no splits
    data_dir    folder of the datasets; None for the default
    escape_ids  percent-encode white space and control characters in ids
    direction   text-to-text, text-to-image or image-to-text; None for the dataset's default
    passages    `WORDS` or `WORDS:STRIDE`, the passages into which texts are split; None for whole documents
    """

    name: str
    split: str | None = None
    data_dir: str | None = None
    escape_ids: bool = False
    direction: str | None = None
    passages: str | None = None

    def at(self, data_dir: str | None) -> CorpusRef:
        """The same dataset in another data folder; None keeps the folder."""
        return replace(self, data_dir=data_dir or self.data_dir)


class EncoderRef(Entry):
    """Which encoder: everything that is needed to load it again. An entry of a manifest.

    name               a row of `cards.CARDS`; of a run of several encoders, their names or "fusion"
    checkpoint         folder, hub id or packaged name; None for an encoder without weights
    checkpoint_digest  of all files that the encoder was loaded from
    options            that it was loaded with; of several fields `<field>.weight`, and changes of a field's own encoder
    """

    name: Key[str] = Key("", required=True)
    checkpoint: Key[str | None] = Key(None)
    checkpoint_digest: Key[str | None] = Key(None)
    options: Key[Mapping[str, Any]] = Key(MappingProxyType({}))

    @property
    def fields(self) -> tuple[FieldEntry, ...]:
        """The fields of an index of several; none of an encoder of its own."""
        return tuple(map(FieldEntry, self.get(FIELDS, ())))

    def without_places(self) -> dict[str, Any]:
        """The entry without the folders of the checkpoint and of its parts: only their content matters."""
        others = {key: value for key, value in self.items() if key != "checkpoint"}
        others["options"] = {
            key: v for key, v in self.options.items() if key.rpartition(".")[2] not in ("checkpoint", *PLACES)
        }
        if self.fields:
            others[FIELDS] = [{**field, "encoder": field.encoder.without_places()} for field in self.fields]
        return others


class FieldEntry(Entry):
    """A field of an index of several: what its terms, `name:term`, and their impacts mean.

    kind     of the shards that it came from: "impact", or "text" for BM25
    encoder  of those shards
    """

    name: Key[str] = Key("", required=True)
    kind: Key[str] = Key("impact", required=True)
    inside = MappingProxyType({"encoder": EncoderRef})

    @property
    def encoder(self) -> EncoderRef:
        """The encoder of the field's shards."""
        return EncoderRef(self["encoder"])

    @property
    def vocabulary_digest(self) -> str | None:
        """Digest of the field's own vocabulary; None where the terms are the words of the corpus."""
        return (self.get("vocabulary") or {}).get("digest") if self.kind == "impact" else None


class CorpusPart(Entry):
    """The part of a corpus that shards hold: its number, how many parts there are, its first document, its size."""

    id: Key[int] = Key(0, required=True)
    num: Key[int] = Key(1, required=True)
    first: Key[int] = Key(0, required=True)
    documents: Key[int] = Key(0, required=True)


class EncodedCorpus(Entry):
    """Which documents were encoded. An entry of a manifest.

    name, split, data_dir, escape_ids, direction   the dataset, see `CorpusRef`
    passages                                       of the dataset, absent where it has none
    documents, digest                              of the whole corpus; the digest is of ids, texts and names of images
    contents                                       digest of the pictures or vectors that were encoded, and of the
                                                   metadata that is stored; None if there are none, or for a manifest of
                                                   an older version
    deleted                                        documents that were deleted from the index since it was built
    """

    name: Key[str] = Key("")
    split: Key[str | None] = Key(None)
    data_dir: Key[str | None] = Key(None)
    escape_ids: Key[bool] = Key(False)
    direction: Key[str | None] = Key(None)
    passages: Key[str | None] = Key(None)
    documents: Key[int] = Key(0)
    digest: Key[str] = Key("")
    contents: Key[str | None] = Key(None)
    deleted: Key[int] = Key(0)
    inside = MappingProxyType({"part": CorpusPart})

    @property
    def ref(self) -> CorpusRef:
        """The dataset that the documents belong to."""
        split = self.split or None
        return CorpusRef(self.name, split, self.data_dir, self.escape_ids, self.direction, self.passages)

    @property
    def part(self) -> CorpusPart | None:
        """The part that the shards hold; None for the whole corpus."""
        return CorpusPart(self["part"]) if self.get("part") else None


# The corpora that were merged into one.
EncodedCorpus.inside = MappingProxyType({"part": CorpusPart, "parts": list[EncodedCorpus]})


class Counts(Entry):
    """What shards, an index or a run hold. An entry of a manifest; a count that does not apply is absent there.

    documents            with a vector or a text
    skipped              documents that were left out, because their image cannot be read
    empty                documents without a posting or without text
    postings             pairs of document and term
    clipped, dropped     postings whose impact was cut to the largest one; weights whose impact is 0
    max_impact           the largest impact; None if it is not known
    topics               of a run
    topics_without_hits  topics for which no document was found
    """

    documents: Key[int] = Key(0)
    skipped: Key[int] = Key(0)
    empty: Key[int] = Key(0)
    postings: Key[int] = Key(0)
    clipped: Key[int] = Key(0)
    dropped: Key[int] = Key(0)
    max_impact: Key[int | None] = Key(None)
    topics: Key[int] = Key(0)
    topics_without_hits: Key[int] = Key(0)
    lines: Key[int] = Key(0)


class ShardRecord(Counts):
    """One shard in a manifest; its name is a path inside the folder.

    `contents`, of its own documents as in `EncodedCorpus`, is noted while the shards are unfinished.
    """

    name: Key[str] = Key("", required=True)
    documents: Key[int] = Key(0, required=True)
    bytes: Key[int] = Key(0, required=True)
    sha256: Key[str] = Key("", required=True)
    contents: Key[str | None] = Key(None)


class SideEntry(Entry):
    """One side of a quantiser in a manifest, see `quantise.SideQuantiser`."""

    scheme: Key[str] = Key("")
    bits: Key[int | None] = Key(None)
    scale: Key[float | None] = Key(None)
    percentile: Key[float] = Key(100.0)

    def requested(self) -> dict[str, Any]:
        """The request of the user, without the scale that calibration found: equal requests give equal artefacts."""
        return {**self, "scale": None if self.scheme == "calibrated" else self.scale}

    def effect(self) -> dict[str, Any]:
        """The values that impacts depend on: a calibrated scale equals the same scale given by the user."""
        scheme = "fixed" if self.scheme == "calibrated" else self.scheme
        return {"scheme": scheme, "bits": self.bits, "scale": self.scale}


class QuantiserEntry(Entry):
    """A quantiser in a manifest; without keys where vectors are no impacts."""

    inside = MappingProxyType({"document": SideEntry, "query": SideEntry})

    def sides(self) -> dict[str, SideEntry]:
        """Its sides by name."""
        return {name: SideEntry(self.get(name) or {}) for name in self.inside if self}


class VocabularyEntry(Entry):
    """A vocabulary in a manifest; without keys where dimensions are no terms."""

    size: Key[int] = Key(0)
    digest: Key[str] = Key("")


# Types that are defined after the entries that hold them.
FieldEntry.inside = MappingProxyType(
    {"encoder": EncoderRef, "quantiser": QuantiserEntry, "vocabulary": VocabularyEntry}
)
EncoderRef.inside = MappingProxyType({FIELDS: list[FieldEntry]})


class LayoutEntry(Entry):
    """How shards are stored, see `shards.layout.Layout`."""

    shard_format: Key[str] = Key("jsonl")
    shard_size: Key[int] = Key(0)
    compress: Key[bool] = Key(False)
    contents: Key[bool] = Key(False)
    metadata: Key[bool] = Key(False)


@dataclass(frozen=True)
class ManifestFile:
    """What both kinds of manifests share: they are read from JSON and written to it.

    title     what the file is, for errors
    remedies  what to do about a manifest of another version, and about a value of another type
    optional  fields that a file may lack
    inside    types of the fields that are plain dictionaries
    """

    title: ClassVar[str]
    remedies: ClassVar[tuple[str, str]]
    optional: ClassVar[frozenset[str]]
    inside: ClassVar[Mapping[str, Any]]

    def __post_init__(self) -> None:
        """Gives the plain dictionaries of a JSON file the types of their fields."""
        for name, entry in (("encoder", EncoderRef), ("corpus", EncodedCorpus), ("counts", Counts)):
            object.__setattr__(self, name, entry(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """The fields by name, for `files.write_json`; the values are those of the manifest, not copies."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "manifest") -> Self:
        """Checks the fields, their types and the format.

        Raises:
            ArtefactError: a field is missing, unknown or of another type, or the format is of another version.
        """
        known = {entry.name: entry for entry in fields(cls)}
        missing, unknown = known.keys() - cls.optional - data.keys(), data.keys() - known.keys()
        if missing or unknown or data["format"] != known["format"].default:
            raise ArtefactError(
                f"{where}: not a {cls.title} of this version (missing {sorted(missing)}, unknown {sorted(unknown)}, "
                f"format {data.get('format')!r}, expected {known['format'].default!r}); {cls.remedies[0]}"
            )
        check(data, cls, where, cls.remedies[1])
        return cls(**data)


@dataclass(frozen=True)
class Manifest(ManifestFile):
    """What made shards, and the index that is built from them (`manifest.json`).

    kind        "impact" | "dense" | "text": what the shards hold, hence which engines can index them
    encoder     enough to load the query side again
    quantiser   `Quantiser.to_json()`; empty unless kind is "impact"
    vocabulary  size and digest; empty unless kind is "impact"
    corpus      the dataset, and the digests of its documents
    counts      documents, empty (documents without a posting), postings, clipped, dropped
    layout      format and size of the shards
    shards      per shard: name, documents, empty, postings, clipped, dropped, bytes, sha256
    versions    of what decides the bytes (lexvl_anserini, torch, transformers, ...)
    """

    kind: str
    encoder: EncoderRef
    corpus: EncodedCorpus
    counts: Counts
    quantiser: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = "lexvl/1"
    title = "manifest"
    remedies = ("encode again", "encode and index again")
    optional = frozenset({"quantiser", "vocabulary", "layout", "shards", "versions"})
    inside = MappingProxyType(
        {
            "quantiser": QuantiserEntry,
            "vocabulary": VocabularyEntry,
            "layout": LayoutEntry,
            "shards": list[ShardRecord],
        }
    )

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "manifest") -> Self:
        """Checks the names of the shards besides, and refuses what 0.3.0 is the last version to read.

        Raises:
            ArtefactError: a shard is no file in `docs/`, a key is `GONE`, or the manifest is not as `ManifestFile`
                expects.
        """
        manifest = super().from_json(data, where)
        encoders = [manifest.encoder, *(field.encoder for field in manifest.encoder.fields)]
        corpora = [manifest.corpus, *(manifest.corpus.get("parts") or ())]
        for key in chain(*corpora, *(encoder.options for encoder in encoders)):
            if key in GONE:
                raise ArtefactError(
                    f"{where}: has {GONE[key]} ({key!r}), which 0.3.0 is the last version to read; use 0.3.0, or "
                    "encode and index again into another folder"
                )
        for name in (shard["name"] for shard in manifest.shards):
            if not SHARD_NAME.fullmatch(name):
                raise ArtefactError(f"{where}: shard {name[:80]!r}, expected docs/ and a file's name; encode again")
        return replace(manifest, shards=tuple(manifest.shards))

    @property
    def vocabulary_digest(self) -> str | None:
        """Digest of the vocabulary; None unless kind is "impact"."""
        return self.vocabulary.get("digest")

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that the terms are of; none in an index of one encoder."""
        return tuple(field.name for field in self.encoder.fields)

    @property
    def documents(self) -> int:
        """Documents to encode: those of the corpus, or of the part of it that the shards hold."""
        return self.corpus.part.documents if self.corpus.part else self.corpus.documents

    @property
    def may_have_metadata(self) -> bool:
        """False if the layout says that the shards store no metadata; a manifest without a layout says nothing."""
        return bool(self.layout.get("metadata", not self.layout))

    def request(self) -> dict[str, Any]:
        """What decides the bytes of the shards: equal requests give equal shards (one machine, equal versions).

        The folders of a checkpoint and of a dataset do not matter; their contents do.
        """
        sides = QuantiserEntry(self.quantiser).sides()
        return {
            "kind": self.kind,
            "encoder": self.encoder.without_places(),
            "corpus": {key: value for key, value in self.corpus.items() if key != "data_dir"},
            "layout": dict(self.layout),
            "vocabulary": dict(self.vocabulary),
            "quantiser": {name: side.requested() for name, side in sides.items()} or None,
        }

    def meaning(self) -> dict[str, Any]:
        """What decides the meaning of an impact: scores can be compared only where this is equal."""
        return {
            "kind": self.kind,
            "encoder": self.encoder.without_places(),
            "vocabulary": dict(self.vocabulary),
            "quantiser": {name: side.effect() for name, side in QuantiserEntry(self.quantiser).sides().items()},
        }


def expect_lexical(what: object, kind: str, why: str) -> None:
    """Refuses shards, an index or an encoder whose kind is another than "impact"; `why` ends the message."""
    if kind != "impact":
        raise UsageError(f"{what} is {kind}; {why}")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of finished shards or of an index.

    Raises:
        ArtefactError: no such folder, unfinished, or not written by encode or index.
    """
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; encode a corpus first")
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / UNFINISHED).is_file():
            raise ArtefactError(f"{folder}: unfinished; run the same encode command again, it resumes")
        raise ArtefactError(f"{folder}: no manifest.json; expected a folder written by encode or index")
    return Manifest.from_json(read_json(path, "manifest"), str(path))


# Digits of a digest behind a name: they separate two files or indexes of one name.
NAMED = 12
INDEX_DIGESTS = re.compile(rf"(@[0-9a-f]{{{NAMED}}})?(\+[0-9a-f]{{{NAMED}}})?$")


@dataclass(frozen=True)
class RunManifest(ManifestFile):
    """What made a run (`<run>.manifest.json`).

    topics               as the user named them: `beir/scifact`, or the name of a topics file
    topics_sha256        of a topics or queries file, or of a dataset's topics; empty for the latter in older manifests.
                         Of a file that names pictures: that of the file, "+", and one that has their bytes, which older
                         manifests lack
    dataset, split       where the qrels are; empty if the topics came from a file of no known dataset
    data_dir             the folder of that dataset, None for the default
    encoder, quantiser   of the index, with what the command changed
    corpus, index        what was searched: the corpus of the index; the name of its folder, "@" and the first digits of
                         a digest of what it held, and of a run that was scored again "+" and those of the SHA-256 of
                         that run; older manifests have the name alone
    counts               topics, topics_without_hits, lines
    efficiency           figures of the search that made it, for tables (ms_per_query, index_bytes, ...)
    sha256               of the run's file as it was written; empty in manifests of 0.2.0 and before
    left_out             lists without the document whose id is the topic's, by `remove_query`; None in manifests of
                         0.2.0 and before, and of what is made of other runs
    """

    topics: str
    dataset: str
    split: str
    data_dir: str | None
    corpus: EncodedCorpus
    encoder: EncoderRef
    quantiser: Mapping[str, Any]
    index: str
    hits: int
    remove_query: bool
    strict_scores: bool = False
    output_format: str = "trec"
    topics_sha256: str = ""
    counts: Counts = field(default_factory=Counts)
    efficiency: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""
    left_out: int | None = None
    format: str = "lexvl-run/1"
    title = "run's manifest"
    remedies = ("search again", "make the run again")
    optional = frozenset({"sha256", "left_out"})  # fields that a later version added
    inside = MappingProxyType({"quantiser": QuantiserEntry})

    @property
    def judged(self) -> CorpusRef | None:
        """The dataset of the topics and their qrels; None if the topics came from a file of no known dataset."""
        if not self.dataset:
            return None
        direction = self.corpus.direction
        return CorpusRef(self.dataset, self.split or None, self.data_dir, self.corpus.escape_ids, direction)

    @property
    def index_name(self) -> str:
        """The name of the index alone."""
        return INDEX_DIGESTS.sub("", self.index)

    @property
    def mixes(self) -> bool:
        """True for a run of several runs, fused or scored by several encoders; it has no encoder of its own."""
        return "runs" in self.encoder.options

    def request(self) -> dict[str, Any]:
        """What decides the content of the run: everything but its counts, figures, versions and digest."""
        measured = ("counts", "efficiency", "versions", "sha256", "left_out")
        return {name: value for name, value in self.to_json().items() if name not in measured}


def manifest_path(run: Path) -> Path:
    """`runs/x.trec` -> `runs/x.trec.manifest.json`; encoded queries have theirs in the same place."""
    return run.with_name(run.name + ".manifest.json")


def write_beside(path: Path, out: BinaryIO, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of a file whose whole content is in `out`, before `atomic_write` gives it the name `path`.

    The older file goes first, when nothing but three renames is left to do: whoever finds a file and a manifest finds
    two that belong together, whenever the process ends.
    """
    sync_to(out)
    with atomic_write(manifest_path(path)) as beside:
        beside.write(json_bytes(manifest))
        sync_to(beside)
        path.unlink(missing_ok=True)
        sync_path(path.parent)


def read_run_manifest(run: Path) -> RunManifest | None:
    """The manifest beside a run; None for a run that another system wrote."""
    path = manifest_path(run)
    return RunManifest.from_json(read_json(path, "run's manifest"), str(path)) if path.exists() else None


# DOC """What made a file: the manifest beside a run, and the place of the one beside encoded queries.
# DOC
# DOC RUN.manifest.json        of a run: a `RunManifest`
# DOC QUERIES.manifest.json    of encoded queries, see `queries.query_vectors`
# DOC """
