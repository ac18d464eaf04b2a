"""What a picture's EXIF data says: date, camera, which way it is held, and the place if that is wanted.

Pillow reads the data, at most `MOST_BYTES` of it whatever its tags claim, and only three of its directories, so that a
file neither fills the memory nor leads in a circle. A value that makes no sense is left out and named.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from math import isfinite
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.data.pictures.images import decoder_errors, open_source, opened
from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.records import NO_METADATA

if TYPE_CHECKING:
    from PIL.Image import Exif, Image

# What is read: without the place, or with it.
BASIC, GPS = "basic", "gps"
EXTENTS = (BASIC, GPS)

# The keys of metadata: those whose values are texts, and those that have ranges.
TEXT_KEYS = ("camera", "orientation")
RANGE_KEYS = ("date", "latitude", "longitude")

# The tags, by Pillow's numbers: pointers to directories, then what is in them.
_EXIF, _GPS = 0x8769, 0x8825
_MAKE, _MODEL, _ORIENTATION, _CHANGED = 0x010F, 0x0110, 0x0112, 0x0132
_WIDE, _HIGH = 0x0100, 0x0101
_TAKEN, _DIGITISED = 0x9003, 0x9004
_LATITUDE, _LONGITUDE = (1, 2), (3, 4)

# Cameras write up to 64 kB, half of it a thumbnail.
MOST_BYTES = 1 << 18

# The first photograph, and a year that no clock should show.
FIRST_YEAR, LAST_YEAR = 1826, 2100
MOST_CHARACTERS = 100

_DATE = re.compile(r"(\d{4})[:/-](\d\d)[:/-](\d\d)(?:[ T].*)?", re.DOTALL)
_HEADER = re.compile(b"(?:Exif\0\0){1,2}")


class Facts(NamedTuple):
    """The metadata of a picture, and what of its EXIF data makes no sense."""

    metadata: Mapping[str, str | float] = NO_METADATA
    problems: tuple[str, ...] = ()


def checked_extent(extent: str | None) -> str | None:
    """One of `EXTENTS`, or None to read no EXIF data."""
    if extent is not None and extent not in EXTENTS:
        raise UnknownName("extent of EXIF data", extent, EXTENTS)
    return extent


def read_facts(reference: str, extent: str = BASIC) -> Facts:
    """The facts of a picture's file; none of one that is no picture.

    date                 YYYY-MM-DD, when it was taken, else when it was made a file or changed
    camera               maker and model
    orientation          landscape, portrait or square, upright
    latitude, longitude  in degrees, north and east positive; with the extent `gps` only
    """
    try:
        with decoder_errors(reference), open_source(reference) as source, opened(source, reference) as image:
            return _facts(image, extent)
    except DataError:  # whoever reads the pixels says so
        return Facts()


def _facts(image: Image, extent: str) -> Facts:
    metadata: dict[str, str | float] = {}
    problems: list[str] = []

    @contextmanager
    def attempt(what: str) -> Iterator[None]:
        try:
            with decoder_errors(what):
                yield
        except (DataError, ArithmeticError):
            problems.append(what)

    with attempt("EXIF data that cannot be read"):
        exif = _exif_of(image)
        with attempt("an EXIF date that makes no sense"):
            metadata |= _date(exif)
        with attempt("an EXIF camera that makes no sense"):
            metadata |= _camera(exif)
        with attempt("an EXIF orientation that makes no sense"):
            # Pillow turns the size of a TIFF already where it opens it.
            size = (exif[_WIDE], exif[_HIGH]) if image.format == "TIFF" else image.size
            metadata |= _orientation(exif, size)
        if extent == GPS:
            with attempt("an EXIF place that makes no sense"):
                metadata |= _place(exif)
    return Facts(metadata, tuple(problems))


class _Limited:
    """A file of which at most `MOST_BYTES` are read."""

    def __init__(self, file: IO[bytes]):
        self._file, self._left = file, MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _exif_of(image: Image) -> Exif:
    """The EXIF data of an open image, which may be none."""
    from PIL.Image import Exif

    limited: Any = _Limited
    if image.format == "TIFF":  # the file itself is such data, and its first directory is read
        exif = image.getexif()
        exif.fp = limited(exif.fp)
        return exif
    exif, data = Exif(), image.info.get("exif")
    content = data[header.end() :] if data and (header := _HEADER.match(data)) else data
    if content:
        exif.load_from_fp(limited(io.BytesIO(content)))
    return exif


def _date(exif: Exif) -> dict[str, str | float]:
    """The first of the three dates; a camera whose clock is not set writes zeros or blanks, which say nothing."""
    inner = exif.get_ifd(_EXIF)
    texts = [_text(values.get(tag)) for values, tag in ((inner, _TAKEN), (inner, _DIGITISED), (exif, _CHANGED))]
    for text in filter(None, texts):
        parts = _DATE.fullmatch(text)
        if parts is None:
            raise ValueError(text[:MOST_CHARACTERS])
        day = date(*(int(part) for part in parts.groups()))
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise ValueError(str(day))
        return {"date": day.isoformat()}
    return {}


def _camera(exif: Exif) -> dict[str, str | float]:
    """Maker and model in one text: models often begin with their maker."""
    make, model = (" ".join(_text(exif.get(tag)).split()) for tag in (_MAKE, _MODEL))
    camera = model if model.lower().startswith(make.lower()) else f"{make} {model}".strip()
    if not camera:
        return {}
    # A text of digits alone would make another type of field.
    if len(camera) > MOST_CHARACTERS or not camera.isprintable() or not any(map(str.isalpha, camera)):
        raise ValueError(camera[:MOST_CHARACTERS])
    camera.encode()
    return {"camera": camera}


def _orientation(exif: Exif, size: tuple[int, int]) -> dict[str, str | float]:
    number = exif.get(_ORIENTATION, 1)
    if not isinstance(number, int) or not 1 <= number <= 8:
        raise ValueError(f"{number!r:.40}")
    wide, high = size if number < 5 else size[::-1]
    return {"orientation": "square" if wide == high else "landscape" if wide > high else "portrait"}


def _place(exif: Exif) -> dict[str, str | float]:
    values = exif.get_ifd(_GPS)
    if not any(tag in values for tag in (*_LATITUDE, *_LONGITUDE)):
        return {}
    latitude, longitude = _degrees(values, _LATITUDE, "NS", 90), _degrees(values, _LONGITUDE, "EW", 180)
    return {"latitude": latitude, "longitude": longitude}


def _degrees(values: Mapping[int, Any], tags: tuple[int, int], sides: str, most: int) -> float:
    """Degrees, minutes and seconds with their side as degrees, to about 10 cm."""
    side, parts = _text(values.get(tags[0])).upper(), [float(part) for part in values[tags[1]]]
    total = sum(part / 60**power for power, part in enumerate(parts))
    if len(parts) != 3 or side not in tuple(sides) or not isfinite(total) or min(parts) < 0 or total > most:
        raise ValueError(f"{parts} {side!r:.40}")
    return round(-total if side == sides[1] else total, 6) + 0.0


def _text(value: Any) -> str:
    """A tag's text without what fills it up; absent and all zeros are empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__}")
    text = value.partition("\0")[0].strip()
    return "" if not text.strip("0: ") else text
