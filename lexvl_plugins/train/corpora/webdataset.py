"""Shards of images with texts, as CC3M, CC12M, YFCC and LAION are kept: `webdataset:<shards>`.

A shard is an uncompressed tar. Its members NAME.jpg (or another picture) and NAME.txt, or NAME.json with a string under
`caption`, are a pair.

The package webdataset reads a shard as a stream, whose place is the state of an iterator and cannot be saved exactly.
Here a shard is indexed when it is opened (`pictures/archives.py`): a pair has a place, so that a training resumes in
the middle of a shard from the number of its step alone, and a damaged shard is an error instead of a shorter one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from os.path import commonpath
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lexvl_anserini.data.checks import check_id
from lexvl_anserini.data.corpora.captioned import Caption, CaptionedImage, view_dataset
from lexvl_anserini.data.dataset import Dataset, choose_direction
from lexvl_anserini.data.lines import HIDDEN, PACKED_ARCHIVES, LeftOut, choose_files
from lexvl_anserini.data.pictures.archives import Archive, open_archive
from lexvl_anserini.data.pictures.images import HEIC_REMEDY, HEIC_SUFFIXES, list_image_suffixes
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import parse_json
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.records import CorpusRef

FAMILY = "webdataset"
OFFERED = ("text-to-image", "image-to-text")

# The only split, which a training names.
SPLIT = "train"

# The suffixes of texts, the one that counts first, and the key of a JSON object.
TEXT, JSON = ".txt", ".json"
KEY = "caption"

# The innermost braces of a pattern, and a range of numbers in braces.
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class ShardImage(NamedTuple):
    """An image of a shard: its member, the id of the pair (`shard/NAME`), its text; None without one."""

    member: str
    pair_id: str
    text: str | None


def load_webdataset(ref: CorpusRef) -> Dataset:
    """Loads `webdataset:<shards>`: a tar, a folder of tars, or a pattern such as `cc3m/{0000..0331}.tar`.

    Every image is a document, and its text a topic of the same id. What is no pair is counted and named in the log.
    The direction is text-to-image (default) or image-to-text; there are no splits.
    """
    if ref.split not in (None, SPLIT):
        raise UsageError(f"{ref.name}: split {ref.split!r} of shards, whose pairs are all {SPLIT!r}; set data.held_out")
    shards, direction = find_shards(ref.name), choose_direction(ref, OFFERED, OFFERED[0])
    return view_dataset(replace(ref, direction=direction), partial(_list_images, ref, shards), lambda: str)


def find_shards(name: str) -> dict[str, Path]:
    """The shards of a corpus by their names: paths below their common folder, without `.tar`."""
    where = name.partition(":")[2]
    if not where:
        raise UsageError(f"{name!r} names no shards; expected {FAMILY}:<folder, tar or pattern such as {{00..99}}.tar>")
    path = expand_path(where)
    if path.is_dir():
        paths = choose_files(path, ".tar", "**/*", PACKED_ARCHIVES)
        if not paths:
            raise DataError(f"{path}: no .tar in it; expected shards")
    else:
        paths = [path] if path.exists() else [expand_path(shard) for shard in expand_pattern(where)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such shard ({len(missing)} of the {len(paths)} of {name} are not there)")
    if others := [path for path in paths if path.suffix.lower() != ".tar"]:
        raise DataError(f"{others[0]}: expected a shard, an uncompressed .tar; unpack it and pack it again")
    folder = Path(commonpath([path.parent for path in paths]))
    shards = {str(path.relative_to(folder).with_suffix("")): path for path in paths}
    if len(shards) < len(paths):
        twice = next(path for path in paths if path not in shards.values())
        raise DataError(f"{twice}: another shard has this name without its suffix; rename one")
    return shards


def expand_pattern(pattern: str) -> list[str]:
    """The names of a pattern as a shell expands it: `{00..12}` or down, `{12..00}`, all of as many digits; `{a,b}`."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    ends = _RANGE.fullmatch(match[1])
    if ends:
        first, last = int(ends[1]), int(ends[2])
        step = 1 if first <= last else -1
        padded = any(end.startswith("0") and len(end) > 1 for end in ends.groups())
        digits = max(map(len, ends.groups())) if padded else 1
        parts = [f"{number:0{digits}d}" for number in range(first, last + step, step)]
    else:
        parts = match[1].split(",")
    return [name for part in parts for name in expand_pattern(pattern[: match.start()] + part + pattern[match.end() :])]


def get_stem(member: str) -> str:
    """The name of a member without its suffix, which the files of a pair share."""
    return str(PurePosixPath(member).with_suffix(""))


def read_shard(archive: Archive, name: str, left_out: LeftOut, escape_ids: bool = False) -> list[ShardImage]:
    """The images of a shard in the order of its members; what is no image with a text is added to `left_out`."""
    by_stem: dict[str, dict[str, str]] = {}
    suffixes = list_image_suffixes()
    for member in archive.members:
        suffix = PurePosixPath(member).suffix.lower()
        kind = "image" if suffix in suffixes else suffix
        members = by_stem.setdefault(get_stem(member), {})
        if "/." in f"/{member}":
            left_out.add(HIDDEN, f"{archive.path}::{member}")
        elif suffix in HEIC_SUFFIXES - suffixes:
            left_out.add(f"HEIC pictures ({HEIC_REMEDY})", f"{archive.path}::{member}")
        elif kind not in ("image", TEXT, JSON):
            left_out.add("neither image nor text", f"{archive.path}::{member}")
        elif kind in members:
            left_out.add("a second one of its pair", f"{archive.path}::{member}")
        else:
            members[kind] = member
    images = []
    for stem, members in by_stem.items():
        text = _read_text(archive, members, left_out)
        if "image" in members:
            where = f"{archive.path}::{members['image']}"
            if text is None:
                left_out.add("an image without a text", where)
            images.append(ShardImage(members["image"], check_id(f"{name}/{stem}", where, escape_ids), text))
        elif text is not None:
            left_out.add("a text without an image", f"{archive.path}::{stem}")
    return images


def _read_text(archive: Archive, members: Mapping[str, str], left_out: LeftOut) -> str | None:
    """The text of a pair; None where there is none, which `left_out` counts if a file of it cannot be read."""
    for kind in (TEXT, JSON):
        if kind not in members:
            continue
        content, where = archive.read(members[kind]), f"{archive.path}::{members[kind]}"
        try:
            text = (content.decode("utf-8-sig") if kind == TEXT else parse_json(content, where, mend=True)[KEY]).strip()
        except UnicodeDecodeError:
            left_out.add("a text that is not UTF-8", where)
        except DataError:
            left_out.add("JSON that cannot be read, or has a key twice", where)
        except (KeyError, TypeError, AttributeError):
            left_out.add(f"JSON without a string {KEY!r}", where)
        else:
            if text:
                return str(text)
    return None


def _list_images(ref: CorpusRef, shards: Mapping[str, Path]) -> Iterator[CaptionedImage]:
    """All images, one shard in memory at a time."""
    left_out = LeftOut()
    for name, path in shards.items():
        for image in read_shard(open_archive(path), name, left_out, ref.escape_ids):
            captions = () if image.text is None else (Caption(image.pair_id, image.text),)
            yield CaptionedImage(image.pair_id, SPLIT, f"{path}::{image.member}", captions)
    left_out.log(ref.name)
