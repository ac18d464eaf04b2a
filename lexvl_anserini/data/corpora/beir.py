"""BEIR's folder layout: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`.

Archives are downloaded, verified, unpacked beside their destination, and renamed into place.
"""

from __future__ import annotations

import errno
import logging
import lzma
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from glob import escape
from itertools import chain
from pathlib import Path

from lexvl_anserini.data.dataset import Dataset, choose_direction, choose_split, data_root
from lexvl_anserini.data.lines import (
    MOST_UNPACKED,
    PACKED,
    LinePlace,
    choose_files,
    get_plain_suffix,
    get_string,
    log_once,
    read_placed_lines,
    remove_packing,
    some,
)
from lexvl_anserini.data.parquet import group_tables
from lexvl_anserini.data.topics import Record, parse_fields, parse_record, read_qrels, read_records, read_topics
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.files import disk_errors, name_part, publish, sole_writer
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.records import NO_METADATA, CorpusRef, Document, Qrel, Topic

DEFAULT_SPLIT = "test"
# BEIR reports MS MARCO on its dev queries; its `test` split has the 43 topics of TREC DL 2019.
DEFAULT_SPLITS = {"msmarco": "dev"}

_OWN_KEYS = frozenset({"_id", "title", "text", "image", "metadata"})


def load_beir(ref: CorpusRef) -> Dataset:
    """Loads `beir/<name>` from the data folder (downloaded if absent), or `beir:<path>`; `/<split>` may follow each.

    `<name>` is any folder of `<data folder>/beir` or `<data folder>`, or a BEIR dataset. The default split is `test`
    (`dev` for msmarco); the only direction is text-to-text.
    """
    ref = replace(ref, direction=choose_direction(ref, ("text-to-text",), "text-to-text"))
    if ref.name.startswith("beir:"):
        folder, split_in_name = split_folder(expand_path(ref.name.removeprefix("beir:")))
        split = choose_split(ref, split_in_name)
        return load_beir_folder(folder, replace(ref, name=f"beir:{folder}" if split_in_name else ref.name, split=split))
    name, split_in_name = _split_name(ref.name.removeprefix("beir").removeprefix("/"), ref.data_dir)
    split = choose_split(ref, split_in_name)
    folder = find_beir(name, ref.data_dir) or fetch_beir(name, data_root(ref.data_dir))
    return load_beir_folder(folder, replace(ref, name=f"beir/{name}", split=split))


def load_beir_folder(folder: Path, ref: CorpusRef) -> Dataset:
    """A dataset in BEIR's layout under the name of the reference.

    Only the corpus has to be there; topics and qrels are looked for when they are read, so that a bare corpus can be
    encoded. A split other than the default is looked for at once.
    """
    default = DEFAULT_SPLITS.get(ref.name.removeprefix("beir/"), DEFAULT_SPLIT)
    split = ref.split or default
    if not (corpus := find_beir_files(folder, split=split)):
        absence = "no corpus.jsonl in it" if folder.is_dir() else "no folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {absence}; expected corpus.jsonl, queries.jsonl, qrels/<split>.tsv")
    if split != default:
        find_qrels(folder, split)
    plain = corpus[0].suffix.lower() == ".jsonl"
    dataset = Dataset.of(
        replace(ref, split=split),
        documents=partial(read_corpus, corpus, ref.escape_ids),
        topics=partial(_read_judged_topics, folder, split, ref.escape_ids),
        qrels=partial(_read_split_qrels, folder, split, ref.escape_ids),
        remove_query=is_beir(folder, ref.name),
    )
    return replace(dataset, placed=partial(read_placed_corpus, corpus[0], ref.escape_ids) if plain else None)


def is_beir(folder: Path, name: str) -> bool:
    """Whether a folder is a dataset of BEIR, by its own name or the one that it is read under: `beir:DATA/scifact`.

    BEIR's own evaluation drops documents whose id is the topic's; elsewhere, equal ids may mean nothing.
    """
    parts = folder.absolute().parts
    names = {"/".join(parts[-1:]), "/".join(parts[-2:])}
    return name.startswith("beir/") or (name.startswith("beir:") and not names.isdisjoint(BEIR_ARCHIVES))


def read_corpus(files: Sequence[Path], escape_ids: bool = False) -> Iterator[Document]:
    """Streams the documents of a `corpus.jsonl`, packed or not, or of Parquet tables; `check_corpus` finds equal ids.

    Keys besides `_id`, `title`, `text`, `image` go to the metadata. A document may have an empty text.
    """
    records = chain.from_iterable(map(read_records, files))
    if (first := next(records, None)) is None:
        raise DataError(f"{files[0]}: no document in it")
    for record in chain([first], records):
        yield _make_document(record, escape_ids)


def read_placed_corpus(path: Path, escape_ids: bool, place: LinePlace) -> Iterator[tuple[LinePlace, Document]]:
    """The documents of a plain `corpus.jsonl` from a place on, each with its place."""
    for here, line in read_placed_lines(path, place):
        yield here, _make_document(parse_record(line), escape_ids)


def read_queries(files: Sequence[Path], escape_ids: bool = False) -> Iterator[Topic]:
    """The topics of some files, one after the other; ids that occur twice are refused."""
    seen: set[str] = set()
    for topic in chain.from_iterable(read_topics(file, escape_ids) for file in files):
        if topic.query_id in seen:
            raise DataError(f"{files[0].parent}: query id {topic.query_id!r} occurs twice; ids must be distinct")
        seen.add(topic.query_id)
        yield topic


def find_beir_files(folder: Path, kind: str = "corpus", split: str = DEFAULT_SPLIT) -> list[Path]:
    """`KIND.jsonl`, packed or not, else the tables of the folder KIND: those of the split, else the only ones."""
    if lines := _find_packed(folder / f"{kind}.jsonl"):
        return [lines]
    tables = group_tables(folder / kind)
    if len(tables) > 1 and tables.keys().isdisjoint((split, kind)):
        there = some(list(tables))
        raise DataError(f"{folder / kind}: tables {there}, none of split {split!r}; name one of these splits")
    return tables.get(split) or tables.get(kind) or next(iter(tables.values()), [])


def split_folder(path: Path) -> tuple[Path, str | None]:
    """The folder and the split of `<folder>/<split>`; no split for any other path."""
    if not path.exists() and find_beir_files(path.parent, split=path.name):
        return path.parent, path.name
    return path, None


def find_qrels(folder: Path, split: str) -> list[Path]:
    """The judgements of a split; the error about missing ones names those that exist."""
    judged = folder / "qrels"
    if lines := _find_packed(judged / f"{split}.tsv", judged / f"{split}.jsonl"):
        return [lines]
    # The hub's names of what has no other are `data` and, in the branch that it converts, `default`.
    tables = next(filter(None, (group_tables(folder / name) for name in ("qrels", "data", "default"))), {})
    if split in tables:
        return tables[split]
    files = [path for path in choose_files(judged, "") if get_plain_suffix(path) in (".tsv", ".jsonl")]
    splits = list(dict.fromkeys([*(remove_packing(path.name).rpartition(".")[0] for path in files), *tables]))
    known = f"splits there: {', '.join(splits)}" if splits else "no split is there"
    raise DataError(f"{judged / split}.tsv: no judgements of split {split!r}; {known}")


def _make_document(record: Record, escape_ids: bool) -> Document:
    """A record's document, with its other keys and those of `metadata`: of two values, the latter is `metadata.KEY`."""
    path, where, values = record
    doc_id, text, image = parse_fields(record, escape_ids)
    title = get_string(values, "title", where)
    others = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    nested = values.get("metadata") or {}
    for key, value in (nested if isinstance(nested, dict) else {"metadata": nested}).items():
        name = key if others.get(key, value) == value else f"metadata.{key}"
        if others.get(name, value) != value:
            raise DataError(f"{where}: {key!r} has two values, and {name!r} a third; rename one of the keys")
        if name != key:
            what = f"{key!r} of a document and of its metadata differ; the latter is {name!r}"
            log_once(f"{path}: {what}", logging.WARNING)
        others[name] = value
    return Document(doc_id, title, text, image, others or NO_METADATA)


def _read_judged_topics(folder: Path, split: str, escape_ids: bool) -> Iterator[Topic]:
    """The queries that occur in the split's judgements, in the order of `queries.jsonl`."""
    judgements, queries = find_qrels(folder, split), find_beir_files(folder, "queries", split)
    if not queries:
        raise DataError(f'{folder / "queries.jsonl"}: no queries; a line is {{"_id": ..., "text": ...}}')
    missing = {qrel.query_id for qrel in _read_split_qrels(folder, split, escape_ids)}
    for topic in read_queries(queries, escape_ids):
        if topic.query_id in missing:
            missing.remove(topic.query_id)
            yield topic
    if missing:
        named = some(list(map(repr, sorted(missing))))
        raise DataError(f"{queries[0]}: no text for {len(missing)} of the queries judged in {judgements[0]}: {named}")


def _read_split_qrels(folder: Path, split: str, escape_ids: bool) -> Iterator[Qrel]:
    return chain.from_iterable(read_qrels(file, escape_ids) for file in find_qrels(folder, split))


def _find_packed(*plain: Path) -> Path | None:
    """The first of some files of one stem that is there, each plain, else packed, with suffixes in any case."""
    folder, stem = plain[0].parent, plain[0].stem
    files = {path.name[len(stem) :].lower(): path for path in choose_files(folder, "", f"{escape(stem)}.*")}
    ends = (path.suffix + packing for path in plain for packing in ("", *PACKED))
    there = [files[end] for end in ends if end in files]
    for other in there[1:]:
        log_once(f"{other}: skipped, {there[0].name} beside it is read", logging.WARNING)
    return there[0] if there else None


def _split_name(rest: str, data_dir: str | None) -> tuple[str, str | None]:
    """Splits `scifact/train`; a name may contain a slash (`cqadupstack/android`)."""
    if not rest or any(part in ("", ".", "..") for part in rest.split("/")):
        raise UsageError(f"'beir/{rest}' names no dataset; expected beir/<name>, such as beir/scifact, or beir:<path>")
    if rest in BEIR_ARCHIVES or find_beir(rest, data_dir) is not None:
        return rest, None
    name, slash, split = rest.rpartition("/")
    name, chosen = (name, split) if slash else (rest, None)
    if name not in BEIR_ARCHIVES and find_beir(name, data_dir) is None:
        root = data_root(data_dir)
        local = {folder.name for parent in (root / "beir", root) for folder in parent.glob("*/")}
        known = {*BEIR_ARCHIVES, *(each for each in local if find_beir(each, data_dir))}
        raise UnknownName("BEIR dataset", name, known)
    return name, chosen


def find_beir(name: str, data_dir: str | None) -> Path | None:
    """The folder of a BEIR dataset that is in the data folder, None if it is not; nothing is fetched."""
    root = data_root(data_dir)
    return next((folder for folder in (root / "beir" / name, root / name) if find_beir_files(folder)), None)


log = logging.getLogger(__name__)

_PLAIN = (
    *("arguana", "climate-fever", "dbpedia-entity", "fever", "fiqa", "hotpotqa", "msmarco", "nfcorpus", "nq", "quora"),
    *("scidocs", "scifact", "trec-covid"),
)
_FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats", "tex", "unix"),
    *("webmasters", "wordpress"),
)

# Data set -> its row in ir_datasets' list of downloads, which keeps address and MD5. Touché is v2, as in BEIR's own
# archive and in Pyserini. BioASQ, Robust04, Signal-1M and TREC-NEWS have no public archive.
BEIR_ARCHIVES: Mapping[str, str] = {
    **{name: name for name in _PLAIN},
    **{f"cqadupstack/{forum}": "cqadupstack" for forum in _FORUMS},
    "webis-touche2020": "webis-touche2020/v2",
}

TIMEOUT_S = 10  # until the server answers: without a network, the download fails within seconds
SILENCE_S = 60  # between two pieces of an archive
CHUNK = 1 << 20  # bytes of a download that are written at once


def fetch_beir(name: str, root: Path) -> Path:
    """Fetches a BEIR dataset into `root/beir` and returns its folder `root/beir/<name>`.

    The folder gets its name only after the archive's checksum is verified and every file is unpacked.
    """
    target = root / "beir" / name.split("/")[0]
    if target.is_dir() and any(target.iterdir()):
        raise DataError(f"{target}: no corpus.jsonl in it; complete the folder, or move it away to fetch it again")
    url, md5 = find_archive(name)
    log.info("fetching %s into %s", url, target)
    with disk_errors(target), sole_writer(target, folder=True):
        unpacked, archive = name_part(target) / target.name, name_part(target) / "archive.zip"
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            _fetch_archive(url, md5, archive)
            _unpack(archive, unpacked.parent)
            if not unpacked.is_dir():
                raise _NotFetchedError(f"no folder {unpacked.name!r} in the archive")
        except _NotFetchedError as problem:
            raise DataError(
                f"beir/{name} is not in the data folder and could not be fetched ({problem}); missing: "
                f"{root / 'beir' / name}/corpus.jsonl, queries.jsonl, qrels/<split>.tsv; fetch {url} elsewhere and "
                f"unpack it as {target}, or name the folder that holds it with --data-dir or $LEXVL_DATA"
            ) from problem
        # The files must be on the disk before the name that calls them finished.
        os.sync()
        publish(unpacked, target)
    return root / "beir" / name


def find_archive(name: str) -> tuple[str, str]:
    """The address and the MD5 (hex) of a BEIR dataset's archive, as ir_datasets lists them."""
    from ir_datasets.util import DownloadConfig

    row = DownloadConfig.context("beir").contents()[BEIR_ARCHIVES[name]]
    return row["url"], row["expected_md5"]


class _NotFetchedError(Exception):
    """An archive that could not be fetched or unpacked; the message says why."""


def _fetch_archive(url: str, md5: str, path: Path) -> None:
    import pooch

    path.parent.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=CHUNK, timeout=(TIMEOUT_S, SILENCE_S))
    try:
        pooch.retrieve(url, f"md5:{md5}", path.name, path.parent, downloader=downloader)
    except OSError as problem:
        if problem.errno is not None:  # a disk error; those of requests have no number
            raise
        raise _NotFetchedError(f"{type(problem).__name__}: the network or the server refused") from problem
    except ValueError as problem:  # another hash
        raise _NotFetchedError(f"what the server sent has another MD5, expected {md5}") from problem


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as source:
            if outside := [name for name in source.namelist() if {"..", ""} & set(name.rstrip("/").split("/"))]:
                raise _NotFetchedError(f"the archive has the member {outside[0]!r:.80}, which leads out of its folder")
            unpacked = sum(member.file_size for member in source.infolist())
            if unpacked > MOST_UNPACKED * archive.stat().st_size:
                raise _NotFetchedError(f"the archive's {archive.stat().st_size} bytes unpack to {unpacked}")
            source.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, OSError) as problem:
        # Disk errors are handled elsewhere. Seeking before the start of the archive is an invalid argument, and a
        # decompressor's error has no number.
        if isinstance(problem, OSError) and problem.errno not in (None, errno.EINVAL):
            raise
        raise _NotFetchedError(f"not a zip archive that can be unpacked ({problem})") from problem
