"""Sample photos: pictures under free licences that installed packages contain, so that nothing is downloaded.

scikit-learn and matplotlib come with this package, scikit-image with its extra `photos`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from lexvl_anserini.data.dataset import Dataset, choose_direction
from lexvl_anserini.data.lines import log_once
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.machine import find_package
from lexvl_anserini.ground.records import CorpusRef, Document


class Sample(NamedTuple):
    """A picture in a package; the title, with hyphens, is its id, and the licence is that of a file of this SHA-256."""

    title: str
    package: str
    file: str
    sha256: str
    licence: str
    credit: str

    @property
    def doc_id(self) -> str:
        """The title without blanks."""
        return self.title.replace(" ", "-")

    def find(self) -> Path | None:
        """The file; None where the package is not installed, or has no such file or another one."""
        folder = find_package(self.package)
        path = folder / self.file if folder else None
        return path if path and path.is_file() and compute_sha256(path).startswith(self.sha256) else None


CC_BY, CC0, FREE = "CC BY 2.0", "CC0", "public domain"
_SKIMAGE, _SKLEARN = "skimage", "sklearn"
SAMPLES = (
    Sample("admiral", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "a8ca6d734765703b", FREE, "US Navy"),
    Sample("astronaut", _SKIMAGE, "data/astronaut.png", "88431cd9653ccd53", FREE, "NASA"),
    Sample("brick wall", _SKIMAGE, "data/brick.png", "7966caf324f6ba84", CC0, "CC0Textures"),
    Sample("cat", _SKIMAGE, "data/chelsea.png", "596aa1e7cb875eb7", CC0, "Stefan van der Walt"),
    Sample("coffee", _SKIMAGE, "data/coffee.png", "cc02f8ca188b167c", CC0, "Rachel Michetti, Pikolo Espresso Bar"),
    Sample("coins", _SKIMAGE, "data/coins.png", "f8d773fc9cfa6f4d", FREE, "Brooklyn Museum"),
    Sample("flower", _SKLEARN, "datasets/images/flower.jpg", "a77f6ec41e353afd", CC_BY, "vultilion"),
    Sample("galaxies", _SKIMAGE, "data/hubble_deep_field.jpg", "3a19c5dd8a927a93", FREE, "NASA, Hubble"),
    Sample("grass", _SKIMAGE, "data/grass.png", "b6b6022426b38936", CC0, "linolafett"),
    Sample("gravel", _SKIMAGE, "data/gravel.png", "c48615b451bf1e60", CC0, "CC0Textures"),
    Sample("man with camera", _SKIMAGE, "data/camera.png", "b0793d2adda0fa6a", CC0, "Lav Varshney"),
    Sample("palace", _SKLEARN, "datasets/images/china.jpg", "8378025ad2519d64", CC_BY, "danielbuechele"),
    Sample("rocket", _SKIMAGE, "data/rocket.jpg", "c2dd0de7c538df8d", FREE, "SpaceX"),
)


def load_samples(ref: CorpusRef) -> Dataset:
    """Loads `samples`: those of the pictures that are installed, without captions."""
    if ref.name != "samples" or ref.split:
        raise DataError(f"{ref.name!r}, split {ref.split!r}: the sample photos have one name, samples, and no splits")
    direction = choose_direction(ref, ("text-to-image",), "text-to-image")
    return Dataset.of(replace(ref, direction=direction), read_samples, _refuse_captions, _refuse_captions)


def read_samples() -> Iterator[Document]:
    """The installed pictures in the order of their ids; the metadata has licence and credit."""
    left_out = []
    for sample in SAMPLES:
        if path := sample.find():
            metadata = {key: getattr(sample, key) for key in ("package", "file", "licence", "credit")}
            yield Document(sample.doc_id, title=sample.title, image=str(path), metadata=metadata)
        else:
            left_out.append(f"{sample.title} ({sample.package})")
    if len(left_out) == len(SAMPLES):
        raise DataError("samples: no package has one of the pictures; pip install scikit-learn scikit-image")
    if left_out:
        log_once(f"samples: not installed, or other pictures than those known: {', '.join(left_out)}")


def _refuse_captions() -> NoReturn:
    raise DataError("samples has no captions and no judgements; search it with --query")
