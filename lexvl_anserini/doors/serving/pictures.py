"""Pictures of a page: scaled copies of the corpus's, and those that a user sends as queries."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.data.pictures.images import decode_image, open_image
from lexvl_anserini.doors.serving import limits
from lexvl_anserini.ground.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

# Longest side in pixels by name.
SIDES = {"small": 320, "large": 1280}

# Pictures up to this side are drawings or icons more often than photos, and are sent without loss.
LOSSLESS = 256


class EncodedPicture(NamedTuple):
    """A picture as bytes, and their media type."""

    content: bytes
    media_type: str


class Recent:
    """The values that were used last; safe for threads.

    Args:
        most: values, or what `size` adds up to.
        size: of a value.
    """

    def __init__(self, most: int, size: Callable[[Any], int] = lambda _: 1):
        self.most, self.size = most, size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """The value of a key; None if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keeps a value; forgets those that were not used for longest."""
        with self._lock:
            if key in self._values:
                self._total -= self.size(self._values.pop(key))
            self._values[key] = value
            self._total += self.size(value)
            while self._total > self.most:
                self._total -= self.size(self._values.popitem(last=False)[1])

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made where it is not kept."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value


def scaled(picture: Image, side: int) -> EncodedPicture:
    """A picture as bytes, at most `side` pixels wide and high; what the file holds besides pixels is left out."""
    copy = picture.copy()
    copy.thumbnail((side, side))
    out = io.BytesIO()
    if max(copy.size) <= LOSSLESS:
        copy.save(out, format="PNG")
        return EncodedPicture(out.getvalue(), "image/png")
    copy.save(out, format="JPEG", quality=85)
    return EncodedPicture(out.getvalue(), "image/jpeg")


def scaled_file(reference: str, side: int) -> EncodedPicture:
    """A picture of a corpus as bytes.

    Raises:
        DataError: it cannot be read.
    """
    return scaled(open_image(reference), side)


class SentPictures:
    """Pictures that users sent, by the first digits of their SHA-256."""

    def __init__(self) -> None:
        self._pictures = Recent(limits.KEPT_UPLOADS)

    def add(self, content: bytes) -> str:
        """Decodes and keeps a picture; returns its id.

        Raises:
            DataError: not a picture of a known format, damaged, or too large.
        """
        picture_id = sha256(content).hexdigest()[:32]
        if self._pictures.get(picture_id) is None:
            picture = decode_image(io.BytesIO(content), "the picture", max_pixels=limits.UPLOAD_PIXELS)
            picture.thumbnail((limits.UPLOAD_SIDE, limits.UPLOAD_SIDE))
            self._pictures.put(picture_id, picture)
        return picture_id

    def picture(self, picture_id: str) -> Image:
        """A picture that was sent.

        Raises:
            DataError: it is not kept any more, or was never sent.
        """
        found: Image | None = self._pictures.get(picture_id)
        if found is None:
            raise DataError("the picture of this query is not on the server any more; send it again")
        return found
