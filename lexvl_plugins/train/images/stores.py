"""Where the images and texts of a stage come from: pixels, or what the frozen part of a network made of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import torch
from torch import Tensor, nn

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.pretrained import PIECE
from lexvl_anserini.ground.files import atomic_write, disk_errors, reserve
from lexvl_plugins.train.common.batches import ImageBatch, StateStore, TextStore, split_positions
from lexvl_plugins.train.recipe import Augmentation
from lexvl_plugins.train.run_folder import STORED

if TYPE_CHECKING:
    from lexvl_plugins.train.images.sides import ImageOver, TextOver

log = logging.getLogger(__name__)

# Images, and texts, of one forward pass of a frozen network.
IMAGES, TEXTS = PIECE, 64


@dataclass(frozen=True)
class Cache:
    """A folder of arrays, each named by what it was made of: runs over the same data and networks may share it."""

    folder: Path

    def store_array(
        self,
        what: str,
        made_of: Sequence[Any],
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        pieces: Iterator[np.ndarray],
    ) -> np.ndarray:
        """An array that is mapped into memory from its file, which `pieces` fill in order unless it exists.

        `made_of` has all that decides the content: digests, settings, seeds.
        """
        digest = sha256(orjson.dumps([*made_of, shape, kind.str], default=str)).hexdigest()[:16]
        path, size = self.folder / STORED.replace("*", f"{what}-{digest}.npy"), prod(shape) * kind.itemsize
        if not path.is_file():
            log.info("computing %s, %s numbers", path.name, " x ".join(f"{length:,}" for length in shape))
            with atomic_write(path) as out, disk_errors(path, size):
                # Written in order, not through a map: a map into a file without room ends the process by a signal.
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                out.flush()
                reserve(out, out.tell() + size)
                for piece in pieces:
                    out.write(np.ascontiguousarray(piece, dtype=kind).tobytes())
        return np.load(path, mmap_mode="r")


def digest_weights(network: nn.Module) -> str:
    """SHA-256 (hex) of the weights of a network as they are now."""
    whole = sha256()
    for name, values in sorted(network.state_dict().items()):
        whole.update(name.encode())
        # An average of equal weights makes 0.0 of -0.0, and adding 0 does too.
        whole.update((values.detach().cpu().flatten() + 0).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def augment(
    pixels: Tensor,
    augmentation: Augmentation,
    draws: np.random.Generator,
    mirrored: np.ndarray | None = None,
    rows: slice = slice(None),
    size: int = 0,
) -> Tensor:
    """A random view of each image [B, 3, R, R]: a crop, shifted and mirrored; bilinear, the border is repeated.

    `mirrored`, bool [B], are the images to mirror; None draws them if the augmentation mirrors. Images that are some
    `rows` of a batch of `size` get the views that they have in the whole batch.
    """
    if augmentation == Augmentation():
        return pixels
    (batch, _, side, _), size = pixels.shape, size or len(pixels)
    zoom = draws.uniform(augmentation.zoom, 1.0, size)[rows]
    room = (1 - zoom) + 2 * augmentation.shift / side  # in coordinates from -1 to 1
    moved = draws.uniform(-1, 1, (2, size))[:, rows] * room
    if mirrored is None:
        mirrored = augmentation.flip & (draws.random(size)[rows] < 0.5)
    sign = np.where(mirrored, -1.0, 1.0)
    theta = np.zeros((batch, 2, 3), dtype=np.float32)
    theta[:, 0, 0], theta[:, 1, 1] = zoom * sign, zoom
    theta[:, 0, 2], theta[:, 1, 2] = moved
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta).to(pixels.device), list(pixels.shape), align_corners=False
    )
    return torch.nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class PixelStore:
    """Decoded images, of which each step makes new views.

    Attributes:
        pixels: uint8 [n, R, R, 3].
    """

    pixels: np.ndarray
    prepare: Pixels
    augmentation: Augmentation
    device: torch.device

    def __len__(self) -> int:
        return len(self.pixels)

    def get_plain(self, positions: np.ndarray) -> ImageBatch:
        """Images without augmentation, by their positions [B]."""
        crops = torch.from_numpy(np.array(self.pixels[positions])).to(self.device)
        return ImageBatch(self.prepare.normalise(crops))

    def draw_views(self, positions: np.ndarray, draws: np.random.Generator) -> ImageBatch:
        """A new random view of each image."""
        return ImageBatch(augment(self.get_plain(positions).values, self.augmentation, draws))


@dataclass(frozen=True)
class FeatureStore:
    """What a frozen network made of some views of each image, the first of them the image itself.

    Attributes:
        features: float16 (or float32) [n, views, cells, D].
    """

    features: np.ndarray
    device: torch.device

    def __len__(self) -> int:
        return len(self.features)

    def get_plain(self, positions: np.ndarray) -> ImageBatch:
        """The first view of images, by their positions [B]."""
        return self._read(positions, np.zeros(len(positions), dtype=int))

    def draw_views(self, positions: np.ndarray, draws: np.random.Generator) -> ImageBatch:
        """One of the stored views of each image."""
        return self._read(positions, draws.integers(self.features.shape[1], size=len(positions)))

    def _read(self, positions: np.ndarray, views: np.ndarray) -> ImageBatch:
        values = np.stack([self.features[place, view] for place, view in zip(positions, views, strict=True)])
        return ImageBatch(torch.from_numpy(values).to(self.device).float())


# The images of a split.
ImageStore = PixelStore | FeatureStore


def read_pixels(images: Sequence[str], pixels: Pixels, cache: Cache, role: str, digest: str) -> np.ndarray:
    """uint8 [n, R, R, 3]: images decoded once into a file that is mapped into memory; `digest` is that of the split."""
    shape = (len(images), pixels.resolution, pixels.resolution, 3)
    crops = (image.value[None] for image in read_images(images, prepare=pixels.crop))
    return cache.store_array(f"pixels-{role}", [digest, repr(pixels)], shape, np.dtype(np.uint8), crops)


def read_normalised(images: Sequence[str], prepare: Pixels, device: torch.device) -> Iterator[Tensor]:
    """Normalised pixels of images, in batches of `IMAGES`."""
    crops = read_images(images, prepare=prepare.crop)
    while piece := list(islice(crops, IMAGES)):
        yield prepare.normalise(torch.from_numpy(np.stack([image.value for image in piece])).to(device))


@torch.inference_mode()
def read_features(
    images: Sequence[str],
    side: ImageOver,
    prepare: Pixels,
    views: int,
    augmentation: Augmentation,
    seed: int,
    cache: Cache,
    role: str,
    digest: str,
) -> np.ndarray:
    """float16 [n, views, cells, D]: what the frozen network of a side makes of the images of a split, computed once.

    The first view of an image is the image itself; the others are random and depend on the seed alone.
    """
    device, network = next(side.parameters()).device, side.copy_frozen()

    def batches() -> Iterator[np.ndarray]:
        for number, plain in enumerate(read_normalised(images, prepare, device)):
            draws = np.random.default_rng((seed, 2, number * IMAGES))
            # With mirrored views, every second view is one.
            mirrored = [np.full(len(plain), augmentation.flip and view % 2 == 1) for view in range(views)]
            seen = (augment(plain, augmentation, draws, mirrored[view]) if view else plain for view in range(views))
            yield np.stack([network(pixels).half().cpu().numpy() for pixels in seen], axis=1)

    shape = (len(images), views, 1 + side.settings.grid**2, len(side.standard.mean))
    # Mirrored views depend on no draw.
    drawn = views > 1 and (augmentation.shift or augmentation.zoom < 1)
    random = [repr(augmentation), seed] if drawn else [augmentation.flip and views > 1]
    made_of = [digest, repr(prepare), digest_weights(network), *random]
    return cache.store_array(f"features-{role}", made_of, shape, np.dtype(np.float16), batches())


@torch.inference_mode()
def read_states(texts: TextStore, side: TextOver, cache: Cache, role: str, digest: str) -> StateStore:
    """The states of all captions of a split, computed once into a file."""

    def batches() -> Iterator[np.ndarray]:
        for chosen in split_positions(len(texts), TEXTS):
            batch = texts.read_batch(chosen)
            states: Any = side.network(batch.ids, batch.attention).last_hidden_state
            yield states.half().cpu().numpy()[batch.attention.cpu().numpy() == 1]

    tokens = sha256(texts.ids.tobytes() + texts.first.tobytes()).hexdigest()
    made_of, shape = [digest, tokens, digest_weights(side.network)], (int(texts.first[-1]), side.config.hidden_size)
    states = cache.store_array(f"states-{role}", made_of, shape, np.dtype(np.float16), batches())
    return StateStore(states, texts.first, texts.device)
