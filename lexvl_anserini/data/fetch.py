"""BEIR's archives from the network: verified, unpacked beside their place, then renamed into it."""

from __future__ import annotations

import errno
import logging
import lzma
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import disk_errors, part_of, publish, sole_writer

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

# The texts in an archive may be so many times larger than it.
MOST_UNPACKED = 50

# Until the server answers: a machine without network learns so in seconds.
TIMEOUT_S = 10
# Between two pieces of an archive.
SILENCE_S = 60
# Bytes of a download that are written at once.
CHUNK = 1 << 20


def fetch_beir(name: str, root: Path) -> Path:
    """Fetches a BEIR dataset into `root/beir` and returns its folder `root/beir/<name>`.

    The folder gets its name only after the archive's checksum is verified and every file is unpacked.

    Raises:
        DataError: the download fails or the archive is damaged; says which files to put where by hand.
        ArtefactError: the disk is full or the data folder cannot be written.
    """
    target = root / "beir" / name.split("/")[0]
    if target.is_dir() and any(target.iterdir()):
        raise DataError(f"{target}: no corpus.jsonl in it; complete the folder, or move it away to fetch it again")
    url, md5 = archive_of(name)
    log.info("fetching %s into %s", url, target)
    with disk_errors(target), sole_writer(target, folder=True):
        unpacked, archive = part_of(target) / target.name, part_of(target) / "archive.zip"
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            _download(url, md5, archive)
            _unpack(archive, unpacked.parent)
            _put_in_place(unpacked, target)
        except _NotFetchedError as problem:
            raise DataError(_by_hand(name, url, target, root / "beir" / name, problem)) from problem
    return root / "beir" / name


def archive_of(name: str) -> tuple[str, str]:
    """The address and the MD5 (hex) of a BEIR dataset's archive, as ir_datasets lists them."""
    from ir_datasets.util import DownloadConfig

    row = DownloadConfig.context("beir").contents()[BEIR_ARCHIVES[name]]
    return row["url"], row["expected_md5"]


class _NotFetchedError(Exception):
    """Why the archive is not here."""


def _download(url: str, md5: str, path: Path) -> None:
    """Downloads an archive and compares it with its MD5."""
    import pooch

    path.parent.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=CHUNK, timeout=(TIMEOUT_S, SILENCE_S))
    try:
        pooch.retrieve(url, f"md5:{md5}", path.name, path.parent, downloader=downloader)
    except OSError as problem:
        if problem.errno is not None:  # of the disk: an error of requests has no number
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
        # Others handle errors of the disk: a place before the start of the archive is an invalid argument, and the
        # error of a decompressor has no number.
        if isinstance(problem, OSError) and problem.errno not in (None, errno.EINVAL):
            raise
        raise _NotFetchedError(f"not a zip archive that can be unpacked ({problem})") from problem


def _put_in_place(unpacked: Path, target: Path) -> None:
    if not unpacked.is_dir():
        raise _NotFetchedError(f"no folder {unpacked.name!r} in the archive")
    # The files must be on the disk before the name that calls them finished.
    os.sync()
    publish(unpacked, target)


def _by_hand(name: str, url: str, target: Path, folder: Path, problem: Exception) -> str:
    return (
        f"beir/{name} is not in the data folder and could not be fetched ({problem}); "
        f"missing: {folder}/corpus.jsonl, queries.jsonl, qrels/<split>.tsv; "
        f"fetch {url} elsewhere and unpack it as {target}, "
        "or name the folder that holds it with --data-dir or $LEXVL_DATA"
    )
