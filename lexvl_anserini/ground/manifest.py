"""What made an artefact: the manifest beside shards, an index or a run.

    FOLDER/manifest.json     of shards, and of the index that is built from them: a `Manifest`
    RUN.manifest.json        of a run: a `RunManifest`
    QUERIES.manifest.json    of encoded queries, see `queries.query_vectors`

A manifest has entries with typed fields. An entry keeps the keys of the file in their order, so that an entry that is
read and written again has the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Self

from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import atomic_write, format_json, read_json, sync_to, withdraw, write_json
from lexvl_anserini.ground.records import CorpusRef, QuantiserEntry, VocabularyEntry
from lexvl_anserini.ground.typed import Entry, check, convert, list_keys

# The file of a `Manifest`, and the file that holds the same while the shards are not complete.
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
NO_ENCODER = "none"  # the name of the encoder of vectors that were imported without one
FIELDS = "fields"  # the name of the encoder of an index of several fields, whose encoders the entry `fields` has
SHARD_NAME = re.compile(r"docs/[^/\0]+")  # a shard is a file in `docs/`, wherever the folder came from

# Keys of a corpus, and options of an encoder, that 0.3.0 is the last version to read, and what they say.
GONE = {"exif": "EXIF metadata", "languages": "queries in other languages", "taught": "taught words"}

# Options that name the folder of a part of an encoder. The checkpoint's digest covers the content of that folder.
PLACES = ("tokenizer", "backbone_config", "query_checkpoint", "backbone_checkpoint", "merges")


class EncoderRef(Entry):
    """Which encoder: everything that is needed to load it again. An entry of a manifest.

    Attributes:
        name: a row of `cards.CARDS`; of a run of several encoders, their names or "fusion".
        checkpoint: folder, hub id or packaged name; None for an encoder without weights.
        checkpoint_digest: of all files that the encoder was loaded from.
        options: that it was loaded with; of several fields `<field>.weight`, and changes of a field's own encoder.
        fields: of an index of several; none of an encoder of its own.
    """

    name: str
    checkpoint: str | None = None
    checkpoint_digest: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    fields: tuple[FieldEntry, ...] = ()

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
    """A field of an index of several, from shards of kind "impact", or "text" for BM25; its terms are `name:term`."""

    name: str
    kind: str
    encoder: EncoderRef
    quantiser: QuantiserEntry = QuantiserEntry()
    vocabulary: VocabularyEntry = VocabularyEntry()

    @property
    def vocabulary_digest(self) -> str | None:
        """Digest of the field's own vocabulary; None where the terms are the words of the corpus."""
        return self.vocabulary.get("digest") if self.kind == "impact" else None


class CorpusPart(Entry):
    """The part of a corpus that shards hold: its number, how many parts there are, its first document, its size."""

    id: int
    num: int
    first: int
    documents: int


class EncodedCorpus(Entry):
    """Which documents were encoded: the keys of a `CorpusRef`, and more. An entry of a manifest.

    Attributes:
        documents: of the whole corpus.
        digest: of the whole corpus: of ids, texts and names of images.
        contents: digest of the pictures or vectors that were encoded, and of the metadata that is stored; None if there
            are none, or for a manifest of an older version.
        deleted: documents that were deleted from the index since it was built.
        part: that the shards hold; None for the whole corpus.
        parts: the corpora that were merged into one.
    """

    name: str = ""
    split: str | None = None
    data_dir: str | None = None
    escape_ids: bool = False
    direction: str | None = None
    passages: str | None = None
    documents: int = 0
    digest: str = ""
    contents: str | None = None
    deleted: int = 0
    part: CorpusPart | None = None
    parts: tuple[EncodedCorpus, ...] = ()

    @property
    def ref(self) -> CorpusRef:
        """The dataset that the documents belong to."""
        split = self.split or None
        return CorpusRef(self.name, split, self.data_dir, self.escape_ids, self.direction, self.passages)


class Counts(Entry):
    """What shards, an index or a run hold. An entry of a manifest; a count that does not apply is absent there.

    Attributes:
        skipped: documents that were left out, because their image cannot be read.
        empty: documents without a posting or without text.
        clipped: postings whose impact was cut to the largest one.
        dropped: weights whose impact is 0.
        max_impact: the largest impact; None if it is not known.
    """

    documents: int = 0
    skipped: int = 0
    empty: int = 0
    postings: int = 0
    clipped: int = 0
    dropped: int = 0
    max_impact: int | None = None
    topics: int = 0
    topics_without_hits: int = 0
    lines: int = 0


class ShardRecord(Counts):
    """One shard in a manifest, by its path in the folder; `contents` is noted while the shards are unfinished."""

    name: str
    documents: int
    bytes: int
    sha256: str
    contents: str | None = None


class LayoutEntry(Entry):
    """How shards are stored, see `shards.layout.Layout`."""

    shard_format: str = "jsonl"
    shard_size: int = 0
    compress: bool = False
    contents: bool = False
    metadata: bool = False


@dataclass(frozen=True)
class ManifestFile:
    """What both kinds of manifests share: they are read from JSON and written to it."""

    title: ClassVar[str]
    remedies: ClassVar[tuple[str, str]]  # about another version, about a value of another type
    optional: ClassVar[frozenset[str]]  # fields that a file may lack

    def __post_init__(self) -> None:
        record: type = type(self)
        for name, (kind, _) in list_keys(record).items():
            object.__setattr__(self, name, convert(getattr(self, name), kind))

    def to_json(self) -> dict[str, Any]:
        """The fields by name, for `files.write_json`; the values are those of the manifest, not copies."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "manifest") -> Self:
        """Checks the fields, their types and the format."""
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

    Attributes:
        kind: "impact" | "dense" | "text": what the shards hold, hence which engines can index them.
        encoder: enough to load the query side again.
        corpus: the dataset, and the digests of its documents.
        quantiser, vocabulary: empty unless kind is "impact".
        versions: of what decides the bytes (lexvl_anserini, torch, transformers, ...).
    """

    kind: str
    encoder: EncoderRef
    corpus: EncodedCorpus
    counts: Counts
    quantiser: QuantiserEntry = field(default_factory=QuantiserEntry)
    vocabulary: VocabularyEntry = field(default_factory=VocabularyEntry)
    layout: LayoutEntry = field(default_factory=LayoutEntry)
    shards: tuple[ShardRecord, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = "lexvl/1"
    title = "manifest"
    remedies = ("encode again", "encode and index again")
    optional = frozenset({"quantiser", "vocabulary", "layout", "shards", "versions"})

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "manifest") -> Self:
        """Checks the names of the shards besides, and refuses what 0.3.0 is the last version to read."""
        manifest = super().from_json(data, where)
        encoders = [manifest.encoder, *(field.encoder for field in manifest.encoder.fields)]
        corpora = [manifest.corpus, *manifest.corpus.parts]
        for key in chain(*corpora, *(encoder.options for encoder in encoders)):
            if key in GONE:
                remedy = "use 0.3.0, or encode and index again into another folder"
                what = f"has {GONE[key]} ({key!r}), which 0.3.0 is the last version to read"
                raise ArtefactError(f"{where}: {what}; {remedy}")
        if strange := [shard.name for shard in manifest.shards if not SHARD_NAME.fullmatch(shard.name)]:
            raise ArtefactError(f"{where}: shard {strange[0][:80]!r}, expected docs/ and a file's name; encode again")
        return manifest

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
        return {
            "kind": self.kind,
            "encoder": self.encoder.without_places(),
            "corpus": {key: value for key, value in self.corpus.items() if key != "data_dir"},
            "layout": dict(self.layout),
            "vocabulary": dict(self.vocabulary),
            "quantiser": {name: side.requested() for name, side in self.quantiser.sides().items()} or None,
        }

    def meaning(self) -> dict[str, Any]:
        """What decides the meaning of an impact: scores can be compared only where this is equal."""
        return {
            "kind": self.kind,
            "encoder": self.encoder.without_places(),
            "vocabulary": dict(self.vocabulary),
            "quantiser": {name: side.effect() for name, side in self.quantiser.sides().items()},
        }


def expect_lexical(what: object, kind: str, why: str) -> None:
    """Refuses shards, an index or an encoder whose kind is another than "impact"; `why` ends the message."""
    if kind != "impact":
        raise UsageError(f"{what} is {kind}; {why}")


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    """Writes `manifest.json` of a folder of shards or an index, or `unfinished.json`."""
    write_json(folder / name, manifest.to_json())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of finished shards or of an index."""
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; encode a corpus first")
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / UNFINISHED).is_file():
            raise ArtefactError(f"{folder}: unfinished; run the same encode command again, it resumes")
        raise ArtefactError(f"{folder}: no manifest.json; expected a folder written by encode or index")
    return Manifest.from_json(read_json(path, "manifest"), str(path))


NAMED = 12  # digits of a digest behind a name: they separate two files or indexes of one name
INDEX_DIGESTS = re.compile(rf"(@[0-9a-f]{{{NAMED}}})?(\+[0-9a-f]{{{NAMED}}})?$")


@dataclass(frozen=True)
class RunManifest(ManifestFile):
    """What made a run (`<run>.manifest.json`).

    Attributes:
        topics: as the user named them: `beir/scifact`, or the name of a topics file.
        dataset: where the qrels are; empty if the topics came from a file of no known dataset.
        data_dir: the folder of that dataset, None for the default.
        encoder, quantiser: of the index, with what the command changed.
        index: the name of its folder, "@" and the first digits of a digest of what it held, and of a run that was
            scored again "+" and those of the SHA-256 of that run; of several encoders "@" and those of a digest of
            them and of their corpora. Older manifests have the name alone.
        topics_sha256: of a topics or queries file, or of a dataset's topics; empty for the latter in older manifests.
            If the file names pictures: its own, "+", and one that has their bytes, which older manifests lack.
        efficiency: figures of the search that made it, for tables (ms_per_query, index_bytes, ...).
        sha256: of the run's file as it was written; empty in manifests of 0.2.0 and before.
        left_out: lists without the document whose id is the topic's, by `remove_query`; None in manifests of 0.2.0 and
            before, and for what is made of other runs.
    """

    topics: str
    dataset: str
    split: str
    data_dir: str | None
    corpus: EncodedCorpus
    encoder: EncoderRef
    quantiser: QuantiserEntry
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


def name_manifest(run: Path) -> Path:
    """`runs/x.trec` -> `runs/x.trec.manifest.json`; encoded queries have theirs in the same place."""
    return run.with_name(run.name + ".manifest.json")


def write_beside(path: Path, out: BinaryIO, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of a file whose whole content is in `out`, before `atomic_write` gives it the name `path`.

    The older file goes first, when nothing but three renames is left to do: whoever finds a file and a manifest finds
    two that belong together, whenever the process ends.
    """
    sync_to(out)
    with atomic_write(name_manifest(path)) as beside:
        beside.write(format_json(manifest))
        sync_to(beside)
        withdraw(path)


def read_run_manifest(run: Path) -> RunManifest | None:
    """The manifest beside a run; None for a run that another system wrote."""
    path = name_manifest(run)
    return RunManifest.from_json(read_json(path, "run's manifest"), str(path)) if path.exists() else None
