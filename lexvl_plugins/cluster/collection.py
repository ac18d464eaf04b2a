"""A collection: the folder of all parts of a corpus.

OUT/part-00000-of-00004/     the shards of a part, as `write_impacts` leaves them
OUT/collection.json          written at the end: the counts of all parts, and the digest of their shards
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import read_json, write_json
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.shards.layout import Part
from lexvl_anserini.shards.manifests import part_name

COLLECTION = "collection.json"
FORMAT = "lexvl-collection/1"


class EncodedCollection(NamedTuple):
    """All parts of a corpus.

    manifest  of the whole, without its shards
    parts     their number
    digest    SHA-256 (hex) of what the shards of all parts hold, in the order of the parts
    """

    manifest: Manifest
    parts: int
    digest: str

    def folders(self, folder: Path) -> list[Path]:
        """The folder of each part."""
        return [folder / part_name(Part(number, self.parts)) for number in range(self.parts)]

    def write(self, folder: Path) -> None:
        """Writes collection.json."""
        entry = {"format": FORMAT, "parts": self.parts, "digest": self.digest, "manifest": self.manifest.to_json()}
        write_json(folder / COLLECTION, entry)

    @classmethod
    def read(cls, folder: Path) -> EncodedCollection:
        """The collection of a folder."""
        path = folder / COLLECTION
        content = read_json(path, "collection")
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            manifest = Manifest.from_json(content["manifest"], str(path))
            return cls(manifest, int(content["parts"]), str(content["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{path}: no collection of this version ({error!r}); encode again") from error
