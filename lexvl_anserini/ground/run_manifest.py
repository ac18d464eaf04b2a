"""What made a file: the manifest beside a run, and the place of the one beside encoded queries.

RUN.manifest.json        of a run: a `RunManifest`
QUERIES.manifest.json    of encoded queries, see `queries.query_vectors`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from lexvl_anserini.ground.files import atomic_write, json_bytes, read_json, sync_path, sync_to
from lexvl_anserini.ground.manifest import (
    CorpusRef,
    Counts,
    EncodedCorpus,
    EncoderRef,
    ManifestFile,
    QuantiserEntry,
)

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
