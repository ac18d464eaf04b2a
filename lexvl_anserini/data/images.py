"""Pictures from wherever they are: files, members of tar archives, PIL images; decoded beside the consumer.

What comes out is always RGB, 8 bits, upright:

- EXIF orientation is applied.
- Alpha is dropped, as `convert("RGB")` does and the reference implementations do; `background` composites instead.
- Palettes, CMYK and the like are converted by Pillow; of an animation the first frame counts.
- 16-bit greyscale keeps its upper eight bits; 32-bit integers count as 16-bit if one is above 255, floats as 0 to 255.
"""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.data.archives import open_archive
from lexvl_anserini.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    Reference = str | Path | Image

# A picture with more pixels is refused before it is decoded: it would take 3 bytes for each.
MAX_PIXELS = 80_000_000

# Decoded pictures waiting for the consumer, per worker.
AHEAD = 2

# The policies for images that cannot be read, see `OnError`.
ON_ERROR = ("fail", "skip")

# The EXIF tag that tells how the camera was held.
_ORIENTATION = 0x0112

_MEMBER = re.compile(r"(?P<archive>.+?\.tar)::(?P<member>.+)", re.IGNORECASE | re.DOTALL)

_NUMBER = re.compile(r"\d+")

# Pillow's names of the formats that are read, the frequent ones first; TGA is last, for it has no mark to know it by.
# EPS and the like are not among them: they are programs, which Pillow hands to another program to run.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "MPO", "DIB", "ICO", "DDS", "BLP"),
    *("PCX", "PSD", "QOI", "SGI", "TGA"),
)

# What Pillow's decoders raise for files that are not what they seem (`NotImplementedError` is a `RuntimeError`).
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, OverflowError, IndexError, KeyError, TypeError),
    RuntimeError,
)


class ReadImage(NamedTuple):
    """A picture (or what `prepare` made of it), with its position among the references, from 0."""

    position: int
    value: Any


class Skipped(NamedTuple):
    """An image that could not be read: its position from 0, its reference, and what is wrong with it."""

    position: int
    reference: str
    reason: str


@dataclass(frozen=True)
class OnError:
    """The policy for images that cannot be read, and the images that it skipped.

    policy   "fail": the first such image raises; "skip": it is left out and listed
    skipped  the images left out, in the order in which they were found

    Raises:
        UsageError: another policy.
    """

    policy: str = "fail"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.policy not in ON_ERROR:
            raise UsageError(f"on_error {self.policy!r}: expected fail or skip")

    def fresh(self) -> OnError:
        """The same policy with an empty list, for one call: positions count from its first image."""
        return OnError(self.policy)

    def unreadable(self, position: int, reference: Reference, problem: DataError) -> None:
        """Raises the problem, or lists the image.

        Raises:
            DataError: the policy is "fail".
        """
        if self.policy == "fail":
            raise problem
        self.skipped.append(Skipped(position, str(reference), str(problem)))


# The policy where none is given.
FAIL = OnError("fail")


def open_image(
    reference: Reference, background: tuple[int, int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Image:
    """Decodes a picture.

    Args:
        reference: a path, `archive.tar::member`, or a PIL image (which is not changed).
        background: RGB of what shows through transparent parts; None drops the alpha channel.
        max_pixels: width times height above which a picture is refused.

    Returns:
        An upright PIL image, mode RGB.

    Raises:
        DataError: no such file, not a picture, cut off, or too large; names the file.
    """
    import PIL.Image

    if isinstance(reference, PIL.Image.Image):
        where = f"PIL image {getattr(reference, 'filename', '')}".strip()
        with _told(where):
            return _decoded(reference, where, background, max_pixels)
    where = str(reference)
    with _told(where), open_source(where) as source, _opened(source, where) as image:
        return _decoded(image, where, background, max_pixels)


@cache
def image_suffixes() -> frozenset[str]:
    """The suffixes, as `.jpg`, of the formats that are read."""
    import PIL.Image

    return frozenset(suffix for suffix, kind in PIL.Image.registered_extensions().items() if kind in FORMATS)


class ImageReader:
    """Pictures in the order of their references; iterate once. See `read_images`.

    read     how many came out so far
    """

    def __init__(
        self,
        references: Iterable[Reference],
        workers: int | None = None,
        on_error: OnError = FAIL,
        prepare: Callable[[Image], Any] | None = None,
    ):
        self.read = 0
        self._on_error = on_error
        self._workers = workers or usable_cores()
        self._prepare = prepare
        self._stream = self._run(iter(references))

    @property
    def skipped(self) -> list[Skipped]:
        """The images that the policy skipped."""
        return self._on_error.skipped

    def __iter__(self) -> Iterator[ReadImage]:
        return self._stream

    def __next__(self) -> ReadImage:
        return next(self._stream)

    def close(self) -> None:
        """Stops the workers; leaving a loop early does so as well."""
        self._stream.close()

    def _run(self, references: Iterator[Reference]) -> Generator[ReadImage, None, None]:
        """Keeps `AHEAD` pictures per worker under way, never more."""
        waiting: deque[tuple[int, Reference, Future[Any]]] = deque()
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="images")
        failure: Exception | None = None
        position = 0
        more = True
        try:
            while more or waiting:
                while more and len(waiting) < self._workers * AHEAD:
                    try:
                        reference = next(references)
                    except StopIteration:
                        more = False
                    except Exception as problem:  # told after the pictures that came before it
                        failure, more = problem, False
                    else:
                        waiting.append((position, reference, pool.submit(self._one, reference)))
                        position += 1
                if waiting:
                    yield from self._result(*waiting.popleft())
            if failure:
                raise failure
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _result(self, position: int, reference: Reference, future: Future[Any]) -> Iterator[ReadImage]:
        value = future.result()
        if isinstance(value, DataError):
            self._on_error.unreadable(position, reference, value)
        else:
            self.read += 1
            yield ReadImage(position, value)

    def _one(self, reference: Reference) -> Any:
        """A picture, prepared, or the error that kept it from being read (an error of `prepare` is raised)."""
        try:
            image = open_image(reference)
        except DataError as problem:
            return problem
        return self._prepare(image) if self._prepare else image


def read_images(
    references: Iterable[Reference],
    workers: int | None = None,
    on_error: OnError = FAIL,
    prepare: Callable[[Image], Any] | None = None,
) -> ImageReader:
    """Decodes pictures in threads beside the consumer, a few ahead of it, in order; memory does not grow.

    Args:
        references: paths, `archive.tar::member`, PIL images; taken as they are needed.
        workers: threads; default one per usable core.
        on_error: raises at the first unreadable image, or skips and lists it.
        prepare: called in the workers, for instance to resize into an array.

    Returns:
        An iterator of `ReadImage(position, value)` with `read` and `skipped`.

    Raises:
        DataError: (while iterating) an unreadable image, if the policy is "fail".
    """
    return ImageReader(references, workers, on_error, prepare)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_source(where: str) -> BinaryIO:
    """The bytes of a picture that is a path or `archive.tar::member`.

    Raises:
        DataError: it is not there.
    """
    if match := _MEMBER.fullmatch(where):
        return io.BytesIO(open_archive(Path(match["archive"]).expanduser()).read(match["member"]))
    try:
        return open(Path(where).expanduser(), "rb")
    except OSError as problem:
        hint = "; a member is named archive.tar::member, and the tar is not compressed" if "::" in where else ""
        raise DataError(f"{where}: cannot be read ({problem.strerror or problem}){hint}") from problem


@cache
def _without_warnings_of_bombs() -> None:
    """Pillow warns of large pictures on its own account, from another size on; a filter of the user's still counts."""
    import PIL.Image

    warnings.filterwarnings("ignore", category=PIL.Image.DecompressionBombWarning, append=True)


@cache
def _readable_formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow opens."""
    import PIL.Image

    PIL.Image.init()
    return tuple(kind for kind in FORMATS if kind in PIL.Image.OPEN)


def _opened(source: BinaryIO, where: str) -> Image:
    import PIL.Image

    _without_warnings_of_bombs()
    try:
        return PIL.Image.open(source, formats=_readable_formats())
    except PIL.UnidentifiedImageError as problem:
        source.seek(0)
        start = source.read(8)
        found = f"it begins with {start!r}" if start else "it is empty"
        raise DataError(f"{where}: not a picture of a known format ({found})") from problem
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as problem:
        # Pillow refuses the largest before their size can be asked for, and tells the number of pixels.
        number = _NUMBER.search(str(problem))
        pixels = f"{int(number[0]):,} pixels" if number else str(problem)
        limit = min(MAX_PIXELS, PIL.Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
        raise DataError(_too_large(where, pixels, limit)) from problem


def _too_large(where: str, found: str, limit: int) -> str:
    return f"{where}: {found}, more than the limit of {limit:,}; scale the picture down"


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Turns what decoders raise into one line that begins with the file's name."""
    try:
        yield
    except _BROKEN as problem:
        raise DataError(f"{where}: a damaged or cut off picture ({problem})") from problem


def _decoded(image: Image, where: str, background: tuple[int, int, int] | None, max_pixels: int) -> Image:
    """Many pictures are opened but not decoded yet: their size is looked at first."""
    width, height = image.size
    if width * height > max_pixels:
        raise DataError(_too_large(where, f"{width}x{height} pixels", max_pixels))
    image.load()
    return _upright_rgb(image, background)


def _upright_rgb(image: Image, background: tuple[int, int, int] | None) -> Image:
    import PIL.Image

    image = _upright(image)
    if image.mode.startswith(("I", "F")):
        image = PIL.Image.fromarray(_eight_bits(image))
    if background is not None and (image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info):
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, background), image.convert("RGBA"))
    return image.convert("RGB")


def _upright(image: Image) -> Image:
    """EXIF orientation applied; EXIF data that cannot be read says nothing."""
    from PIL import ImageOps

    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except _BROKEN:
        return image


def _eight_bits(image: Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Greyscale of 16 or 32 bits as uint8 [H, W]."""
    values = np.asarray(image)
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=0.0)
    elif values.dtype.itemsize == 2 or (values.size and values.max() > 255):
        values = values >> 8
    return values.clip(0, 255).astype(np.uint8)
