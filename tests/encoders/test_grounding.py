"""Grid cells of images: what each has of a query, on grids of any side, where they are, and maps drawn over images."""

import numpy as np
import pytest
from colour_towers import colour_tower, painted
from PIL import Image

from lexvl_anserini.encoders.parts.images.grounding import compute_contributions, compute_patch_logits, overlay
from lexvl_anserini.encoders.parts.images.pixels import Crop, Pixels, Squares, centre_crop, make_crop

RED = (200, 0, 0)
PALE = 0.4 * 60 + 0.6 * 255  # the grey of RED is .299 * 200, rounded; of the rest 60 % is white


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("grid", [1, 7, 9])
def test_each_cell_has_what_is_in_it(grid, class_token):
    tower = colour_tower(grid, class_token)
    side = grid * 4
    image = painted(side, side, red=(0, 0, 4, 4), blue=(side - 4, side - 2, side, side))
    found = compute_contributions(tower, image, {"red": 10, "blue": 4})
    expected = np.zeros((grid, grid))
    expected[0, 0], expected[-1, -1] = 10, 2  # half of the last cell is blue
    if grid == 1:
        expected[0, 0] = 10 * 0.5 + 4 * 0.5  # the lower half is blue, the rest red
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert compute_patch_logits(tower, [image, image], [0]).shape == (2, grid, grid, 1)


def test_cells_cover_the_crop_of_a_wide_image():
    # The crop is the middle square, x from 10 to 30: its upper left cell is red, what is left of it is not seen.
    image = painted(40, 20, green=(0, 0, 10, 20), red=(10, 0, 20, 10))
    tower = colour_tower(2)
    np.testing.assert_allclose(compute_contributions(tower, image, {"red": 1, "green": 1}), [[1, 0], [0, 0]], atol=0.1)
    assert tower.pixels.region(image.size) == (10, 0, 30, 20)


@pytest.mark.parametrize(
    ("pixels", "size", "expected"),
    [
        (Pixels(8), (8, 8), (0, 0, 8, 8)),
        (Pixels(8), (32, 16), (8, 0, 24, 16)),
        (Pixels(8), (16, 32), (0, 8, 16, 24)),
        # Resized to 10 x 10, cut from 1 to 9: 8 of 10 parts of the image.
        (Crop(8, shorter=10), (100, 100), (10, 10, 90, 90)),
        # Resized to 6 x 6, with a border of 1 around it.
        (Crop(8, shorter=6), (60, 60), (-10, -10, 70, 70)),
        (make_crop(224), (256, 256), (16, 16, 240, 240)),
        (Squares(8), (100, 30), (0, 0, 100, 30)),
    ],
)
def test_regions_by_hand(pixels, size, expected):
    np.testing.assert_allclose(pixels.region(size), expected)


@pytest.mark.parametrize("size", [(301, 97), (97, 301), (224, 224), (33, 500)])
def test_the_region_is_what_the_crop_shows(size):
    """A smooth image cut and resized at the region looks like the crop."""
    ramp = np.stack(np.broadcast_arrays(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1])[:, None], 80), -1)
    image = Image.fromarray(ramp.astype(np.uint8))
    seen = image.resize((32, 32), Image.Resampling.BICUBIC, box=Pixels(32).region(size))
    # Resizing rounds the long side by less than a pixel.
    assert np.abs(np.asarray(seen, int) - centre_crop(image, 32, 32).astype(int)).max() <= 8


@pytest.mark.parametrize("size", [(20, 30_011), (30_011, 33), (16, 20_000)])
def test_of_a_long_strip_only_the_centre_is_computed(size, monkeypatch):
    monkeypatch.setattr("lexvl_anserini.encoders.parts.images.pixels.MOST_PIXELS", 1 << 14)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    shorter, longer = min(size), max(size)
    resized = [16 if length == shorter else int(16 * longer / shorter) for length in size]
    left, top = (round((length - 16) / 2) for length in resized)
    whole = picture.resize(resized, Image.Resampling.BICUBIC).crop((left, top, left + 16, top + 16))
    assert np.abs(Pixels(16).crop(picture).astype(int) - np.asarray(whole)).max() <= 1


# ---- maps over images


def shown(size, region, grid):
    return np.asarray(overlay(Image.new("RGB", size, RED), region, np.array(grid))).astype(int)


def test_the_largest_value_keeps_its_colour_and_the_smallest_is_pale():
    picture = shown((8, 8), (0, 0, 8, 8), [[0.0, 1.0], [0.0, 0.0]])
    assert picture[0, 7].tolist() == list(RED)
    assert np.abs(picture[7, 0] - PALE).max() <= 1
    between = picture[0, :, 0] - picture[0, :, 1]  # saturation grows from left to right without steps
    assert (np.diff(between) >= 0).all() and len(set(between)) > 4


def test_outside_of_the_region_the_image_is_pale():
    picture = shown((40, 20), (10, 0, 30, 20), [[1.0, 1.0], [1.0, 0.0]])
    assert np.abs(picture[:, :10] - PALE).max() <= 1 and np.abs(picture[:, 30:] - PALE).max() <= 1
    assert picture[0, 10].tolist() == list(RED)
    assert np.abs(picture[19, 29] - PALE).max() <= 1
    assert np.abs(shown((4, 4), (0, 0, 4, 4), [[2.0, 2.0], [2.0, 2.0]]) - PALE).max() <= 1, "a flat map is pale"
    picture = shown((10, 10), (-10, -10, 20, 20), [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert np.abs(picture[5, 5] - RED).max() <= 4 and (picture[0, 0] - picture[5, 5])[1] > 60
