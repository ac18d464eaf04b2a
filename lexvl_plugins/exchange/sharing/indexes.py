"""Whole indexes for others: pushed to the hub or to storage with a card, and pulled with every byte compared.

    owner/name          a data set of the hub, one commit for all files, whose digests the hub lists
    s3://bucket/index   a folder of storage, whose listing has the digests

An index is refused if its manifest names folders of this machine: they would become public, and be read elsewhere.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from lexvl_anserini.data.lines import some
from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints import find
from lexvl_anserini.engines.engine import open_index, open_verified
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    LOCK,
    PARTITION,
    REPORT,
    RESIDENT,
    Unchanged,
    index_manifest,
    is_index,
    measure_folder,
    read_report,
    report_digest,
)
from lexvl_anserini.engines.lucene.fields import get_reader, list_commit_files
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.files import PART, new_folder, read_json_value
from lexvl_anserini.ground.manifest import MANIFEST, PLACES, EncoderRef, Manifest
from lexvl_anserini.ground.records import VOCABULARY, Measurement
from lexvl_anserini.ground.registry import CORPORA, ENGINES
from lexvl_plugins.cluster.partitions import name_partition
from lexvl_plugins.cluster.storage import fetch, place, publish_after
from lexvl_plugins.exchange.sharing import pushing

log = logging.getLogger(__name__)
DATASET = "dataset"
PROCESS_FILES = (LOCK, PART)
# Families of corpora whose colon a name of other projects follows, not a path.
NAMED = frozenset({"irds"})


def read_measures(path: Path) -> list[Measurement]:
    """The values that `lexvl score --format json` printed into a file."""
    rows = read_json_value(path, "file that lexvl score --format json prints", list, DataError)
    names = set(Measurement._fields) - set(Measurement._field_defaults)
    if not all(isinstance(row, dict) and names <= row.keys() for row in rows):
        raise DataError(f"{path}: expected what lexvl score --format json prints")
    return [Measurement(**{name: row[name] for name in Measurement._fields if name in row}) for row in rows]


def list_places(manifest: Manifest, sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists the folders of a machine that an index names: of its corpora, checkpoints and their parts."""
    named = {manifest.corpus.data_dir, *_list_encoder_places(manifest.encoder)}
    places = {name for name in named if name and name not in PACKAGED and _is_place(name)}
    for corpus in (manifest.corpus.name, *(str(source.get("corpus", "")) for source in sources)):
        family, colon, _ = corpus.partition(":")
        if colon and family not in NAMED and family in CORPORA and CORPORA[family].has_path:
            places.add(corpus)
    return sorted(places)


def _list_encoder_places(encoder: EncoderRef) -> Iterator[str | None]:
    yield encoder.checkpoint
    for key, value in encoder.options.items():
        if key.rpartition(".")[2] in ("checkpoint", *PLACES) and isinstance(value, str):
            yield value
    for field in encoder.fields:
        yield from _list_encoder_places(field.encoder)


def _is_place(name: str) -> bool:
    """Whether a name is that of a file or folder: absolute, relative to the working folder, or there."""
    with suppress(OSError, ValueError):
        return name.startswith(("/", "./", "../", "~")) or Path(name).exists()
    return False


def refuse_places(where: str, index: Path, manifest: Manifest, why: str) -> None:
    """Refuses an index that names folders of a machine."""
    if named := list_places(manifest, read_report(index).get("sources", ())):
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        raise ArtefactError(f"{where}: its manifest names {named[0]!r}{more}, {why}, or give --with-places")


def check_index(index: Path) -> Manifest:
    """Returns the manifest of an index whose files are all as they were written; refuses any other."""
    manifest, report = index_manifest(index), read_report(index)
    if not report:
        raise ArtefactError(f"{index}: no {REPORT}, an index of another program; `lexvl adopt` makes it one of ours")
    if ".stores." in ENGINES[report.engine].home:
        raise ArtefactError(f"{index}: its documents are in a store ({report.engine}), not in this folder")
    if report.digest and report_digest(report, manifest) != report.digest:
        raise ArtefactError(f"{index}: manifest and {REPORT} are not of one index; build the index again")
    with open_verified(open_index(index, manifest)) as engine:
        engine.prepare()
    return manifest


def copy_index(index: Path, folder: Path) -> None:
    """Copies the files of an index, and names the others, which stay here."""
    names = set(list_index_files(index))
    known = {*names, "README.md"}  # a pushed index has a card of its own
    if others := sorted(n for n in find.list_names(index) if n not in known and not n.endswith(PROCESS_FILES)):
        log.warning("%s: %d files are not of the index and stay here: %s", index, len(others), some(others))
    pushing.copy_files(index, names, folder)


def list_index_files(index: Path) -> list[str]:
    """Lists the files of an index: ours, those of its engine, and those of its partitions."""
    report = read_report(index)
    resident = [entry.file for entry in report.resident_files] or [RESIDENT]
    names = {MANIFEST, REPORT, VOCABULARY, PARTITION, APPROXIMATE, *resident, *report.files}
    if report.engine == "faiss":
        from lexvl_anserini.engines.faiss import IDS_FILE, INDEX_FILE

        names |= {INDEX_FILE, IDS_FILE}
    if any(index.glob("segments_*")):
        with get_reader(index) as reader:
            names.update(list_commit_files(reader))
    for number in range(report.partitions):
        part = name_partition(number)
        names.update(f"{part}/{name}" for name in list_index_files(index / part))
    return sorted(name for name in names if (index / name).is_file())


def push_index(
    index: Path,
    target: str,
    licence: str,
    measures: Sequence[Measurement] = (),
    private: bool | None = None,
    overwrite: bool = False,
    with_places: bool = False,
) -> dict[str, Any]:
    """Copies an index with its card to the hub or to storage, whole or not at all; returns what the command prints."""
    stored = "://" in target
    hub = pushing.HubPlace(target, DATASET, REPORT, "lexvl push", "--overwrite", private, overwrite=overwrite)
    if not stored:
        hub.check()
    with TemporaryDirectory(prefix="lexvl-push-") as home:
        folder = Path(home) / "index"
        # What is checked is what is pushed, and its card is about it, whoever changes the index afterwards.
        with Unchanged([index]):
            manifest = check_index(index)
            copy_index(index, folder)
        if not with_places:
            why = "which becomes public and which others do not have; index data and encoders with names of their own"
            refuse_places(str(index), folder, manifest, why)
        if deleted := read_report(folder).deleted:
            remedy = f"push a new index without them: python -m lexvl_anserini.index {index} --index NEW"
            raise ArtefactError(f"{index}: {deleted} deleted documents are still in its files; {remedy}")
        (folder / "README.md").write_text(build_card(folder, manifest, licence, measures, target), encoding="utf-8")
        rows = {"documents": manifest.counts.documents, "files": len(list(find.list_names(folder)))}
        if not stored:
            return {"index": hub.commit(folder, "Add an index of lexvl-anserini"), **rows}
        with publish_after(there := place(target)), new_folder(there) as part:
            held = sorted(find.list_names(there)) if there.is_dir() else []
            if held and REPORT not in held and not overwrite:
                raise ArtefactError(pushing.describe_strangers(there, held, hub.writer, hub.replace_by))
            shutil.copytree(folder, part, dirs_exist_ok=True)
        return {"index": target, **rows}


def pull_index(source: str, index: Path, overwrite: bool = False, with_places: bool = False) -> dict[str, Any]:
    """Copies an index from the hub or from storage, with every file compared with its digest; returns what to print."""
    commit = {}
    with new_folder(index) as part:
        held = any(index.iterdir()) if index.is_dir() else False
        if held and not overwrite:
            raise ArtefactError(f"{index}: is there; name another folder, or replace it (--overwrite)")
        if held and not is_index(index):
            raise ArtefactError(f"{index}: holds other files than an index; name another folder")
        if "://" in source:
            fetched = fetch(place(source))
            names = [name for name in find.list_names(fetched) if not name.endswith(PROCESS_FILES)]
            pushing.copy_files(fetched, names, part)
            if not (part / REPORT).is_file():
                raise ArtefactError(f"{source}: no index of `lexvl push` (it lacks {REPORT})")
        else:
            commit = {"commit": fetch_index(source, part)}
        manifest = check_index(part)
        if not with_places:
            refuse_places(source, part, manifest, "a place that may have other things here; pull one without")
    rows = {"index": str(index), "documents": manifest.counts.documents, "bytes": read_report(index).bytes}
    return {**rows, **commit}


def fetch_index(source: str, part: Path) -> str:
    """Writes the files of a data set of the hub, `owner/name[@revision]`, into a folder; returns the commit."""
    from huggingface_hub import HfApi, snapshot_download

    repo_id, _, revision = source.partition("@")
    pushing.check_name(repo_id)
    with pushing.hub_errors(repo_id, "download", "pull again, it goes on"):
        info = HfApi().dataset_info(repo_id, revision=revision or None, files_metadata=True)
        commit = str(info.sha)
        if not find.COMMIT.fullmatch(commit):
            raise ArtefactError(f"{repo_id}: the hub answers with commit {commit!r:.80}, expected 40 hex digits")
        listed = [sibling for sibling in info.siblings or () if sibling.rfilename not in pushing.HUB_FILES]
        if odd := next((entry.rfilename for entry in listed if not find.is_safe_name(entry.rfilename)), None):
            raise ArtefactError(f"{repo_id}: the hub lists {odd!r:.80}, which is not a name inside a folder; refused")
        files = [find.read_hub_file(repo_id, sibling) for sibling in listed]
        if REPORT not in {file.name for file in files}:
            raise ArtefactError(f"{repo_id}: no index of `lexvl push` (it lacks {REPORT})")
        names = [escape(file.name) for file in files]
        snapshot = Path(snapshot_download(repo_id, repo_type=DATASET, revision=commit, allow_patterns=names))
    pushing.copy_files(snapshot, [file.name for file in files], part)
    for file in files:
        if find.compute_digest_like(file.digest, part / file.name) != file.digest:
            find.remove_blob(snapshot / file.name)
            raise ArtefactError(f"{repo_id}: {file.name} arrived damaged and was removed; pull again")
    return commit


def build_card(index: Path, manifest: Manifest, licence: str, measures: Sequence[Measurement], target: str) -> str:
    """Writes README.md of a pushed index: metadata of the hub, figures, and how to search it."""
    head = {"license": licence, "tags": ["lexvl", "index", manifest.kind], "library_name": "lexvl-anserini"}
    report = read_report(index)
    encoder, corpus, name = manifest.encoder, manifest.corpus, target.rstrip("/").rpartition("/")[2]
    source = f"file:///.../{name}" if target.startswith("file:") else target
    figures = {
        "Corpus": f"`{corpus.name}`" + (f", split `{corpus.split}`" if corpus.split else ""),
        "Encoder": f"`{encoder.name}`" + (f", checkpoint `{encoder.checkpoint}`" if encoder.checkpoint else ""),
        "Documents": f"{manifest.counts.documents:,}",
        "Postings": f"{report.postings:,}" if report.postings else "none",
        "Engine": f"{report.engine}" + (f", Lucene {report.lucene}" if report.lucene else ""),
        "Bytes of the engine": f"{measure_folder(index):,}",
        "Texts of documents": "stored" if report.options.get("store_text") else "not stored",
        "Metadata of documents": "stored" if report.fields else "not stored",
        "Licence of the documents": licence,
        "Made by": f"lexvl-anserini {manifest.versions.get('lexvl-anserini', 'unknown')}",
    }
    text = (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {name}\n\n"
        f"An index of lexvl-anserini.\n\n{pushing.draw_table(figures)}\n\n"
        f"## Use\n\n```\nlexvl pull {source} indexes/pulled\n"
        'lexvl search --index indexes/pulled --query "a red boat"\n```\n'
    )
    means = [value for value in measures if value.query_id == "all"]
    return f"{text}\n{pushing.draw_measures(means)}\n" if means else text
