"""Karpathy's `dataset_*.json`: images with their split and captions, read one at a time.

The file of COCO has 144 MB, most of it tokens that are not used: its list is decoded element by element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.checks import checked_id
from lexvl_anserini.data.lines import whole_characters
from lexvl_anserini.ground.errors import DataError

_BLANK = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Caption(NamedTuple):
    """One sentence about an image."""

    caption_id: str
    text: str


class CaptionedImage(NamedTuple):
    """One image of a Karpathy file: `imgid`, split, file (with its folder, as `val2014/x.jpg`), its captions."""

    image_id: str
    split: str
    file: str
    captions: tuple[Caption, ...]


def read_karpathy(
    path: Path, splits: frozenset[str] | None = None, escape_ids: bool = False
) -> Iterator[CaptionedImage]:
    """Streams the images of a Karpathy file in file order.

    Args:
        path: of the file.
        splits: whose images are wanted; None for all.
        escape_ids: percent-encode white space and control characters in ids instead of refusing them.

    Raises:
        DataError: not there, malformed, an image without id, split, file name or captions (names which), or no image
            of the splits (names those there).
    """
    there: set[str] = set()
    for number, record in enumerate(_elements(path), start=1):
        where = f"{path} image {number}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: {record!r} is not an object")
        where += f" ({record.get('filename', 'without a file name')})"
        split = _string(record, "split", where)
        there.add(split)
        if splits is None or split in splits:
            yield _image(record, split, where, escape_ids)
    if not there:
        raise DataError(f"{path}: no image in it")
    if splits is not None and not there & splits:
        wanted = " or ".join(map(repr, sorted(splits)))
        raise DataError(f"{path}: no image of split {wanted}; splits there: {', '.join(sorted(there))}")


def _image(record: dict[str, Any], split: str, where: str, escape_ids: bool) -> CaptionedImage:
    file = _string(record, "filename", where)
    if record.get("filepath"):
        file = f"{_string(record, 'filepath', where)}/{file}"
    sentences = _field(record, "sentences", where)
    if not isinstance(sentences, list):
        raise DataError(f"{where}: 'sentences' is not a list")
    return CaptionedImage(
        checked_id(_field(record, "imgid", where), where, escape_ids),
        split,
        file,
        tuple(_caption(sentence, f"{where} caption {n}", escape_ids) for n, sentence in enumerate(sentences, start=1)),
    )


def _caption(record: Any, where: str, escape_ids: bool) -> Caption:
    if not isinstance(record, dict):
        raise DataError(f"{where}: not an object")
    text = _string(record, "raw", where)
    return Caption(checked_id(_field(record, "sentid", where), where, escape_ids), text.strip())


def _field(record: dict[str, Any], key: str, where: str) -> Any:
    if key not in record:
        raise DataError(f"{where}: no {key!r}; keys found: {', '.join(map(str, record)) or 'none'}")
    return record[key]


def _string(record: dict[str, Any], key: str, where: str) -> str:
    value = _field(record, key, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is {value!r}, expected a string")
    return str(whole_characters(value)) if _SURROGATE.search(value) else value


def _elements(path: Path) -> Iterator[Any]:
    """The elements of the list `images`, at any place in the object."""
    text = _text(path)
    decoder = json.JSONDecoder()
    try:
        at = _expect(text, 0, "{")
        while text[at : at + 1] != "}":
            key, at = decoder.raw_decode(text, at)
            at = _expect(text, at, ":")
            if key == "images":
                yield from _list(text, _expect(text, at, "["), decoder)
                return
            _, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                at = _expect(text, at, ",")
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: malformed JSON ({problem}); fetch the file again") from problem
    raise DataError(f"{path}: no 'images' in it; expected Karpathy's dataset_<name>.json")


def _list(text: str, at: int, decoder: json.JSONDecoder) -> Iterator[Any]:
    while text[at : at + 1] != "]":
        element, at = decoder.raw_decode(text, at)
        yield element
        at = _skip(text, at)
        if text[at : at + 1] != "]":
            at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str) -> int:
    """The position after a mark and the blanks around it."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"expected {mark!r}", text, at)
    return _skip(text, at + 1)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: not valid UTF-8 (byte {problem.start + 1}); fetch the file again") from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
