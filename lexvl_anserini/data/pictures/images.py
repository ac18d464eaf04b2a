"""Images from files, members of tar archives and PIL images, decoded in threads ahead of the consumer.

The result is always RGB, 8 bits, upright:

- EXIF orientation is applied.
- Alpha is dropped, as `convert("RGB")` does and the reference implementations do.
- Nothing but pixels is kept: no comment, no EXIF, and no colour profile, by which no colour is converted either.
- Pillow converts palettes, CMYK and other modes; an animation gives its first frame.
- 16-bit greyscale keeps its upper eight bits; integers up to 255 are eight bits, of whichever type.
- Floats, and integers below 0, large or dark, are read by their range: 0 to 1, 0 to 255, else least to greatest.

HEIC, in which many phones store pictures, is read where the package pillow-heif is installed.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.data.parquet import read_picture
from lexvl_anserini.data.pictures.archives import CELL, MEMBER, find_page, open_archive
from lexvl_anserini.ground.errors import FAIL, DataError, OnError, refuse_pointer
from lexvl_anserini.ground.registry import NUMBERED, PICTURES, import_home

if TYPE_CHECKING:
    from PIL.Image import Image

    Reference = str | Path | Image

# An image with more pixels raises an error before it is decoded: it would take 3 bytes per pixel.
MAX_PIXELS = 80_000_000

AHEAD = 2  # decoded images that wait for the consumer, per worker
_ORIENTATION = 0x0112  # the EXIF tag of the orientation
_NUMBER = re.compile(r"\d+")

# Pillow's names of the formats that are read, the frequent ones first; TGA is last, because it has no signature.
# EPS and similar formats are missing: such files are programs, which Pillow runs in another program.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "MPO", "DIB", "ICO", "DDS", "BLP"),
    *("PCX", "PSD", "QOI", "SGI", "HEIF", "TGA"),
)

# HEIC: its suffixes, how its files begin after four bytes, and what to do where it is not read.
HEIC_SUFFIXES = frozenset({".heic", ".heics", ".heif", ".heifs", ".hif"})
_HEIC_BRANDS = tuple(b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1"))
HEIC_REMEDY = "install the package pillow-heif, or convert to JPEG"

# What Pillow's decoders raise for damaged files (`NotImplementedError` is a `RuntimeError`).
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, OverflowError, IndexError, KeyError, TypeError),
    RuntimeError,
)


class ReadImage(NamedTuple):
    """An image (or the result of `prepare` for it), with its position among the references, from 0."""

    position: int
    value: Any


def open_image(reference: Reference, max_pixels: int = MAX_PIXELS) -> Image:
    """Decodes an image to an upright PIL image, mode RGB.

    A reference is a path, `archive.tar::member`, `table.parquet::row`, a page (`scan.tif#3`), or a PIL image (which is
    not changed). An image of more than `max_pixels` raises an error; pages are rendered to a size of their own.
    """
    import PIL.Image

    if isinstance(reference, PIL.Image.Image):
        where = f"PIL image {getattr(reference, 'filename', '')}".strip()
        with raise_decoder_errors(where):
            return decode_picture(reference, where, max_pixels)
    where = str(reference)
    if find_page(where):
        picture: Image = import_home(PICTURES[NUMBERED])(where)
        return picture
    with raise_decoder_errors(where), open_source(where) as source:
        return decode_image(source, where, max_pixels)


def decode_image(source: BinaryIO, where: str, max_pixels: int = MAX_PIXELS) -> Image:
    """Decodes an image from an open file, for example `io.BytesIO`; as `open_image`, with `where` for its errors."""
    with raise_decoder_errors(where), open_picture(source, where) as image:
        return decode_picture(image, where, max_pixels)


@cache
def list_image_suffixes() -> frozenset[str]:
    """The suffixes, as `.jpg`, of the formats that are read."""
    import PIL.Image

    _register_heic()
    return frozenset(suffix for suffix, kind in PIL.Image.registered_extensions().items() if kind in FORMATS)


def read_images(
    references: Iterable[Reference],
    workers: int | None = None,
    on_error: OnError = FAIL,
    prepare: Callable[[Image], Any] | None = None,
) -> Generator[ReadImage, None, None]:
    """Decodes images in threads, at most `AHEAD` per worker ahead of the consumer, in order; memory does not grow.

    The threads, by default one per usable core, end with the iterator; they call `prepare`, whose errors are raised.
    """
    workers = workers or count_usable_cores()
    waiting: deque[tuple[int, Reference, Future[Any]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="images")
    numbered = enumerate(_end_with_error(references))
    try:
        while True:
            for position, reference in islice(numbered, workers * AHEAD - len(waiting)):
                waiting.append((position, reference, pool.submit(_prepare_image, reference, prepare)))
            if not waiting:
                return
            position, reference, future = waiting.popleft()
            if isinstance(value := future.result(), DataError):
                on_error.unreadable(position, reference, value)
            else:
                yield ReadImage(position, value)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_error(references: Iterable[Reference]) -> Iterator[Any]:
    """The references, and at last the error that they raise: the images before it come first."""
    try:
        yield from references
    except Exception as problem:
        yield problem


def _prepare_image(reference: Any, prepare: Callable[[Image], Any] | None) -> Any:
    """An image, prepared, or the error if it cannot be read; raises an error in the place of a reference."""
    if isinstance(reference, Exception):
        raise reference
    try:
        image = open_image(reference)
    except DataError as problem:
        return problem
    return prepare(image) if prepare else image


def count_usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_source(where: str) -> BinaryIO:
    """Opens an image's file, its member of an archive (`archive.tar::member`) or its row of a table, as bytes."""
    if match := MEMBER.fullmatch(where):
        return io.BytesIO(open_archive(Path(match["archive"])).read(match["member"]))
    if match := CELL.fullmatch(where):
        return io.BytesIO(read_picture(Path(match["table"]), int(match["row"])))
    path = Path(where)
    try:
        if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise DataError(f"{where}: a pipe, a socket or a device, expected the file of a picture")
        return open(path, "rb")
    except OSError as problem:
        hint = "; a member is named archive.tar::member, and the tar is not compressed" if "::" in where else ""
        raise DataError(f"{where}: cannot be read ({problem.strerror or problem}){hint}") from problem


@cache
def _drop_warnings() -> None:
    """Silences Pillow's warnings about large and damaged images; the user's own filters take precedence."""
    import PIL.Image

    warnings.filterwarnings("ignore", category=PIL.Image.DecompressionBombWarning, append=True)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.", append=True)


@cache
def _register_heic() -> None:
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()


@cache
def _list_formats() -> tuple[str, ...]:
    import PIL.Image

    PIL.Image.init()
    _register_heic()
    return tuple(kind for kind in FORMATS if kind in PIL.Image.OPEN)


def open_picture(source: BinaryIO, where: str, formats: Sequence[str] = FORMATS) -> Image:
    """An image whose pixels are not decoded yet, from an open file of one of some formats."""
    import PIL.Image

    _drop_warnings()
    try:
        return PIL.Image.open(source, formats=[kind for kind in _list_formats() if kind in formats])
    except PIL.UnidentifiedImageError as problem:
        source.seek(0)
        start = source.read(32)
        refuse_pointer(where, start)
        if start[4:12] in _HEIC_BRANDS and "HEIF" not in _list_formats():
            raise DataError(f"{where}: a HEIC picture; {HEIC_REMEDY}") from problem
        beginning = f"it begins with {start[:8]!r}" if start else "it is empty"
        if start[:4] in (b"II*\0", b"MM\0*"):
            beginning = "a damaged TIFF, or one of pixels that are not read, as floats of 16 or 64 bits; save 32 bits"
        raise DataError(f"{where}: not a picture of a known format ({beginning})") from problem
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as problem:
        # Pillow refuses the largest images before their size is known; its message has the number of pixels.
        number = _NUMBER.search(str(problem))
        pixels = f"{int(number[0]):,} pixels" if number else str(problem)
        limit = min(MAX_PIXELS, PIL.Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
        raise DataError(_describe_size(where, pixels, limit)) from problem


def _describe_size(where: str, size: str, limit: int) -> str:
    return f"{where}: {size}, more than the limit of {limit:,}; scale the picture down"


@contextmanager
def raise_decoder_errors(where: str) -> Iterator[None]:
    """Turns errors of decoders into an error of one line that begins with the file's name."""
    try:
        yield
    except _BROKEN as problem:
        raise DataError(f"{where}: a damaged or cut off picture ({problem})") from problem


def decode_picture(image: Image, where: str, max_pixels: int = MAX_PIXELS) -> Image:
    """Decodes an opened image, after a check of its size: opening alone decodes nothing."""
    import PIL.Image

    width, height = image.size
    if not width * height:
        raise DataError(f"{where}: {width}x{height} pixels, expected at least 1x1; leave an empty crop out")
    if width * height > max_pixels:
        raise DataError(_describe_size(where, f"{width}x{height} pixels", max_pixels))
    image.load()
    image = _transform_upright(image)
    if image.mode.startswith(("I", "F")):
        image = PIL.Image.fromarray(_convert_to_eight_bits(image))
    return keep_pixels(image.convert("RGB"))


def keep_pixels(image: Image) -> Image:
    """The image, an own copy, without what a file would hold besides pixels: formats save what `info` has."""
    image.info = {}
    return image


def _transform_upright(image: Image) -> Image:
    """The image with EXIF orientation applied; unreadable EXIF data is ignored."""
    from PIL import ImageOps

    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except _BROKEN:
        return image


def _convert_to_eight_bits(image: Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Greyscale of 16 or 32 bits as uint8 [H, W]."""
    values = np.asarray(image)
    if values.dtype.kind != "f" and values.min() >= 0 and (values.max() <= 255 or 0x2000 <= values.max() <= 0xFFFF):
        return (values >> 8 if values.max() > 255 else values).astype(np.uint8)
    black, white = _find_range(values[np.isfinite(values)])
    width = (white - black) or 1.0
    return np.nan_to_num((values / width - black / width) * 255).clip(0, 255).astype(np.uint8)


def _find_range(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The values of black and white: 0 and 1, or 0 and 255, where such a range holds all, else the least and greatest.

    Scaling a picture adds values a quarter beyond its range; below 32 of 255 all is dark, as distances in metres are.
    """
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    for top, least in ((1.0, low), (255.0, 32.0)):
        if low >= -top / 4 and least <= high <= top * 1.25:
            return 0.0, top
    return low, high
