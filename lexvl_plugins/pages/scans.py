"""Pages of pictures: a TIFF has as many as it has pictures, any other file one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexvl_anserini.data.pictures.archives import PageReference
from lexvl_anserini.data.pictures.images import decoded, decoder_errors, open_source, opened
from lexvl_anserini.ground.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


def count_pages(where: str) -> int:
    """The number of pages.

    Raises:
        DataError: not a picture of a known format.
    """
    with decoder_errors(where), open_source(where) as source, opened(source, where) as image:
        return _frames(image)


def picture_of(page: PageReference, longest: int) -> Image:
    """A page as an upright RGB picture whose longer side has at most so many pixels; JPEG is decoded smaller."""
    where = str(page)
    with decoder_errors(where), open_source(page.file) as source, opened(source, where) as image:
        if page.page > _frames(image):
            raise DataError(f"{page}: no such page; the file has {_frames(image):,}")
        if page.page > 1:
            image.seek(page.page - 1)
        image.draft("RGB", (longest, longest))
        picture = decoded(image, where)
    picture.thumbnail((longest, longest))
    return picture


def _frames(image: Image) -> int:
    return int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1
