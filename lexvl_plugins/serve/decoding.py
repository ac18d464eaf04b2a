"""Pictures of strangers, each decoded in a process of its own, which ends at a deadline or a limit of memory.

A decoder written in C is stopped by nothing else, and one that crashes takes no server with it.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from lexvl_anserini.data.pictures.images import decode_picture, open_picture, raise_decoder_errors
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.serve import limits

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "AVIF", "HEIF")

# What the process reads before the file: bytes of memory, pixels, pixels times scans, longest side of the result.
ORDER = struct.Struct(">4Q")
# What it writes before the pixels: width and height; 0 and 0 before the reason why there are none.
SIZE = struct.Struct(">2L")

# The begin of a scan of a JPEG; a progressive one has some ten, and each costs as much as the whole picture.
SCAN = b"\xff\xda"

REMEDY = "save it anew, or scale it down"


def decode(content: bytes) -> Image:
    """The picture of a file, reduced to `UPLOAD_SIDE`."""
    import PIL.Image

    order = ORDER.pack(limits.DECODE_BYTES, limits.UPLOAD_PIXELS, limits.UPLOAD_SCANS, limits.UPLOAD_SIDE)
    # Its own package alone is imported: nothing that lies in the folder where the server was started.
    call = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}; from {__name__} import answer; answer()"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        child = subprocess.run(
            call, input=order + content, capture_output=True, timeout=limits.DECODE_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"the picture: not decoded within {limits.DECODE_S:.0f} s; {REMEDY}") from None
    answer, pixels = child.stdout[: SIZE.size], child.stdout[SIZE.size :]
    if child.returncode or len(answer) < SIZE.size:
        raise DataError(f"the picture: its decoder crashed or took too much memory; {REMEDY}")
    if (size := SIZE.unpack(answer)) == (0, 0):
        raise DataError(pixels.decode())
    return PIL.Image.frombytes("RGB", size, pixels)


def answer() -> None:
    """The process: reads an order and a file from standard input, writes the picture or the reason to its output."""
    most, *costs = ORDER.unpack(sys.stdin.buffer.read(ORDER.size))
    content = sys.stdin.buffer.read()
    with suppress(ImportError, ValueError, OSError):  # a system without such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        picture = read_picture(content, *costs)
        reply = SIZE.pack(*picture.size) + picture.tobytes()
    except DataError as error:
        reply = SIZE.pack(0, 0) + str(error).encode(errors="replace")
    sys.stdout.buffer.write(reply)


def read_picture(content: bytes, pixels: int, scans: int, side: int) -> Image:
    """Decodes a picture whose cost is admitted: its pixels, and these times the scans of a JPEG."""
    where = "the picture"
    try:
        opened = open_picture(io.BytesIO(content), where, FORMATS)
    except DataError as error:
        raise DataError(f"{error}; expected JPEG, PNG, WebP, GIF, AVIF or HEIC") from error
    with raise_decoder_errors(where), opened:
        width, height = opened.size
        if content.startswith(b"\xff\xd8") and (number := content.count(SCAN)) * width * height > scans:
            most = f"more than the limit of {scans:,} together; save it anew"
            raise DataError(f"{where}: {number:,} scans of {width}x{height} pixels, {most}")
        picture = decode_picture(opened, where, pixels)
    picture.thumbnail((side, side))
    return picture
