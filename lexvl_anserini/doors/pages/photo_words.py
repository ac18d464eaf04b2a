"""An index of what photos show and of the words in them, the fields `image` and `text`, beside the album of the photos.

    ALBUM/index/       the album's own index (`searching/following.py`), from which the terms of the photos are taken
    ALBUM/read/words/  the words (`encode --corpus read-pictures:FOLDER --encoder bm25`)
    ALBUM/read/index/

Words are remembered (`reading.py`), so that a photo is read once; what is written follows from the album and them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.exif import read_facts
from lexvl_anserini.doors.pages.answering import IMAGE, TEXT, PageAlbum, built, words_of
from lexvl_anserini.engines.opening import WITH_WORDS
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.searching.building import metadata_texts
from lexvl_anserini.searching.following import DIGEST, Album
from lexvl_anserini.searching.unpacking import write_own_shards

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.searching.index import Index

# A word of a query that is written in a photo says more than the many terms of a network (docs/photos.md).
FACTOR = 6


def with_words(pictures: Dataset, album: Album, progress: Progress = silent) -> Index:
    """Brings the index of photos and their words up to date; the caller lets no other process write the album.

    Args:
        pictures: of the album, `folder:PATH`, whose index is up to date.
        progress: called with the number of photos whose words are read.
    """
    own, held = PageAlbum(album.path / WITH_WORDS), metadata_texts(album.index, DIGEST)
    place = pictures.name.partition(":")[2]
    read = load_dataset(f"read-pictures:{place}", escape_ids=True, direction=pictures.ref.direction)
    words_of(replace(read, documents=lambda: (d for d in read.documents() if d.doc_id in held)), own, progress)
    facts = {
        picture.doc_id: read_facts(picture.image or "", pictures.exif).metadata if pictures.exif else {}
        for picture in pictures.documents()
    }
    write_own_shards(album.index, own.pictures, read_manifest(album.index), facts)
    return built({TEXT: own.words, IMAGE: own.pictures}, own, {TEXT: FACTOR})
