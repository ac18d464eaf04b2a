"""What is to be built: the engine, its options, and whether the index is there already. Nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lexvl_anserini.engines.engine import EngineOptions
from lexvl_anserini.engines.index_folder import HEADS, REPORT, read_report
from lexvl_anserini.engines.opening import changing_engine, engine_class, engine_name, engine_of, target_of
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, read_manifest
from lexvl_anserini.ground.places import fetched, place
from lexvl_anserini.ground.registry import ENGINES
from lexvl_anserini.shards.collection import part_folders

Folders = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class BuildPlan:
    """An index to build.

    sources    folders of shards, or of indexes to merge
    index      its folder
    manifest   of its documents
    engine     a row of `registry.ENGINES`
    options    of the engine
    overwrite  another index of that name may be replaced
    finished   the index is there already, as planned
    """

    sources: Sequence[Path]
    index: Path
    manifest: Manifest
    engine: str
    options: EngineOptions
    overwrite: bool
    finished: bool = False

    def looked_at(self) -> BuildPlan:
        """The plan with a fresh look at what is there."""
        there = is_built(self.index, self.manifest, self.engine, self.options, self.overwrite)
        return replace(self, finished=there)


def plan_index(
    shards: Folders,
    index: Path | str | None,
    engine: str | None,
    options: Mapping[str, Any],
    overwrite: bool,
) -> BuildPlan:
    """What `build_index` would do; nothing is written."""
    sources = folders_of(shards)
    named = shards if isinstance(shards, Path | str) else shards[0]
    target = target_of(default_index(place(named)) if index is None else index, engine, options)
    manifest = planned_manifest(sources, target.engine)
    name = engine_name(manifest.kind, target.engine)
    chosen = engine_class(name).options(own_options(name, manifest.kind, target.options))
    return BuildPlan(sources, target.folder, manifest, name, chosen, overwrite).looked_at()


def default_index(shards: Path) -> Path:
    """`impacts/demo.vdr` -> `indexes/demo.vdr`."""
    return Path("indexes") / shards.resolve().name


def folders_of(shards: Folders) -> list[Path]:
    """One folder or several, as a list; in place of a collection its parts.

    Raises:
        UsageError: none.
        ArtefactError: parts of a collection are missing.
    """
    given = [place(shards)] if isinstance(shards, Path | str) else [place(folder) for folder in shards]
    found = [fetched(part, HEADS) for folder in given for part in part_folders(folder)]
    if not found:
        raise UsageError("no shards; name a folder that encode wrote")
    return found


def planned_manifest(sources: Sequence[Path], engine: str | None = None) -> Manifest:
    """The manifest of an index of these folders."""
    if len(sources) == 1:
        return read_manifest(sources[0])
    from lexvl_anserini.shards.collection import combined  # imports scipy

    merging = changing_engine(sources[0], engine)
    return combined([merging.source_manifest(folder) for folder in sources], sources)


def own_options(engine: str, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options without those of other engines that are switched off.

    Raises:
        UsageError: some are options of another engine.
    """
    names = engine_class(engine).option_names
    kept = {name: value for name, value in given.items() if name in names or value is not False}
    foreign = [name for name in kept if name not in names]
    for other, row in ENGINES.items():
        if owned := [name for name in foreign if other != engine and name in engine_class(other).option_names]:
            raise UsageError(
                f"{', '.join(owned)}: no option of the engine {engine}, which indexes these shards ({kind}), but of "
                f"{other}, which indexes {' and '.join(row.kinds)} shards"
            )
    return kept


def is_built(index: Path, manifest: Manifest, engine: str, options: EngineOptions, overwrite: bool) -> bool:
    """True if `index` was built from these shards with this engine and these options; False if it may be built.

    Raises:
        ArtefactError: the folder holds something else: shards, files that are no index of ours, or, unless it may be
            overwritten, another index.
    """
    if not index.exists():
        return False
    if index.is_dir() and not any(index.iterdir()):
        index.rmdir()
        return False
    if not (index / REPORT).is_file() or not (index / MANIFEST).is_file():
        raise ArtefactError(f"{index}: exists and is no index of ours; name another --index")
    found, report = read_manifest(index), read_report(index)
    if found != manifest:
        return claim(index, "an index", manifest.to_json(), found.to_json(), overwrite) is Claim.DONE
    stored = {"engine": report.get("engine"), **engine_of(index, found.kind).stored_options(report)}
    wanted = {"engine": engine, **options.to_json()}
    decision = claim(
        index,
        "an index",
        {name: str(value) for name, value in wanted.items()},
        {name: str(stored.get(name)) for name in wanted},
        overwrite,
    )
    return decision is Claim.DONE and engine_of(index, found.kind).is_whole(index, report)
