import io
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import tar_of
from PIL import Image, features
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.data.pictures.images import (
    AHEAD,
    count_usable_cores,
    decode_image,
    list_image_suffixes,
    open_image,
    read_images,
)
from lexvl_anserini.ground.errors import FAIL, DataError, OnError, UsageError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def stored(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def saved(tmp_path, image, name="a.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


def pixels(reference, **options):
    image = open_image(reference, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


def left_red_right_blue():
    image = Image.new("RGB", (4, 2), RED)
    image.paste(BLUE, (2, 0, 4, 2))
    return image


def test_a_path_a_string_a_pil_image_and_a_member_are_the_same_picture(tmp_path):
    image = left_red_right_blue()
    path = saved(tmp_path, image)
    archive = tar_of(tmp_path / "b.tar", {"./in/a.png": path.read_bytes()})
    expected = np.asarray(image)
    for reference in (path, str(path), image, f"{archive}::in/a.png", f"{archive}::./in/a.png"):
        assert (pixels(reference) == expected).all()
    for unchanged in (image, Image.new("RGBA", (2, 2), (255, 0, 0, 10))):
        before = unchanged.copy()
        open_image(unchanged).putpixel((0, 0), BLUE)
        assert unchanged == before


def test_a_tilde_in_the_name_of_a_picture_is_a_character(tmp_path, monkeypatch):
    for folder, colour in (("~", RED), ("home", BLUE)):
        (tmp_path / folder).mkdir()
        path = saved(tmp_path / folder, Image.new("RGB", (1, 1), colour))
        tar_of(tmp_path / folder / "b.tar", {"a.png": path.read_bytes()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for reference in ("~/a.png", "~/b.tar::a.png"):
        assert pixels(reference).tolist() == [[list(RED)]]
        digests = FileDigests(tmp_path / "memory")
        assert digests.of(reference) == digests.of(str(tmp_path / reference))


@pytest.mark.parametrize(
    ("orientation", "corner"), [(1, RED), (2, BLUE), (3, BLUE), (4, RED), (5, RED), (6, RED), (7, BLUE), (8, BLUE)]
)
def test_exif_orientation(tmp_path, orientation, corner):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = left_red_right_blue().resize((64, 32), Image.Resampling.NEAREST)
    seen = pixels(saved(tmp_path, image, "a.jpg", exif=exif, quality=95))
    assert seen.shape[:2] == ((32, 64) if orientation < 5 else (64, 32))
    assert np.abs(seen[1, 1].astype(int) - corner).max() < 20
    unreadable = saved(tmp_path, left_red_right_blue(), "b.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert pixels(unreadable).shape == (2, 4, 3)


def test_nothing_but_pixels_is_kept():
    """Each kind of metadata that Pillow writes in a format."""
    exif, text, tags = Image.Exif(), PngInfo(), ImageFileDirectory_v2()
    exif[0x010E] = tags[0x010E] = "12.345 N"
    text.add_text("Comment", "12.345 N")
    values = dict.fromkeys(("comment", "icc_profile", "xmp"), b"12.345 N") | {"exif": exif}
    values |= {"pnginfo": text, "tiffinfo": tags}
    keys = {"JPEG": "exif comment icc_profile xmp", "MPO": "exif comment icc_profile", "GIF": "comment"}
    keys |= {"PNG": "exif icc_profile pnginfo", "TIFF": "exif icc_profile tiffinfo", "WEBP": "exif icc_profile xmp"}
    keys |= {"AVIF": "exif icc_profile xmp"} if features.check("avif") else {}
    for kind, key in ((kind, key) for kind, named in keys.items() for key in named.split()):
        data = stored(Image.new("RGB", (4, 4), RED), kind, **{key: values[key]})
        for picture in (decode_image(io.BytesIO(data), "a"), open_image(Image.open(io.BytesIO(data)))):
            assert (picture.info, dict(picture.getexif())) == ({}, {}), (kind, key)
            assert stored(picture, "JPEG") == stored(Image.frombytes("RGB", (4, 4), picture.tobytes()), "JPEG")


def test_alpha_and_a_transparent_colour_are_dropped(tmp_path):
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((1, 0), (*BLUE, 0))
    palette = image.convert("RGB").quantize(2)
    for path in (saved(tmp_path, image), saved(tmp_path, palette, "b.png", transparency=1)):
        assert pixels(path).tolist() == [[list(RED), list(BLUE)]]


@pytest.mark.parametrize(
    ("image", "greys"),
    [
        (Image.new("L", (1, 1), 77), [77]),
        (Image.new("LA", (1, 1), (77, 9)), [77]),
        (Image.new("1", (1, 1), 1), [255]),
        (Image.fromarray(np.array([[0, 200]], np.int32)), [0, 200]),
        (Image.fromarray(np.array([[0, 0xFF00]], np.int32)), [0, 255]),
        (Image.fromarray(np.array([[0, 1 << 30, (1 << 31) - 1]], np.int32)), [0, 127, 255]),
        (Image.fromarray(np.array([[-3, 7.9, 300, np.nan, np.inf]], np.float32)), [0, 7, 255, 0, 255]),
        (Image.fromarray(np.array([[-0.02, 0, 0.5, 1.02, np.nan]], np.float32)), [0, 0, 127, 255, 0]),
        (Image.fromarray(np.array([[-1, 0, 1]], np.float32)), [0, 127, 255]),
        (Image.fromarray(np.array([[0, 2.5, 10]], np.float32)), [0, 63, 255]),  # metres
        (Image.fromarray(np.array([[np.nan, np.nan]], np.float32)), [0, 0]),
    ],
)
def test_other_modes(image, greys):
    assert pixels(image).tolist() == [[[grey] * 3 for grey in greys]]
    assert pixels(Image.new("CMYK", (1, 1), (0, 255, 255, 0))).tolist() == [[list(RED)]]


def test_sixteen_bits_keep_the_upper_eight_unless_all_are_dark(tmp_path):
    greys = {(0, 255, 256, 0x8000, 0xFFFF): [0, 0, 1, 0x80, 0xFF], (0, 200): [0, 200], (0, 1365, 4095): [0, 85, 255]}
    for name, values in [(name, values) for name in ("a.png", "a.tiff") for values in greys]:
        path = saved(tmp_path, Image.fromarray(np.array([values], np.uint16)), name)
        assert pixels(path)[0, :, 0].tolist() == greys[values]


@pytest.mark.parametrize(("order", "start"), [("<", b"II*\0"), (">", b"MM\0*")])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_floats_of_other_widths_are_named(tmp_path, order, start, kind):
    data = np.array([[0, 0.5, 1]], order + kind).tobytes()
    sizes = {256: 3, 257: 1, 258: 8 * int(kind[1]), 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(data), 339: 3}
    tags = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in sizes.items())
    directory = struct.pack(f"{order}H", len(sizes)) + tags + bytes(4)
    path = tmp_path / "depth.tif"
    path.write_bytes(start + struct.pack(f"{order}I", 8 + len(data)) + data + directory)
    if kind == "f4":
        assert pixels(path)[0, :, 0].tolist() == [0, 127, 255]
    else:
        with pytest.raises(DataError, match=r"depth.tif: .*a damaged TIFF, or .* as floats of 16 or 64 bits; save 32"):
            open_image(path)


def test_an_animation_shows_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (3, 3), colour) for colour in (RED, BLUE)]
    path = saved(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert pixels(path)[1, 1].tolist() == list(RED)


def png_header(width, height):
    """A PNG that says how large it is and holds nothing."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


@pytest.mark.parametrize(
    ("size", "told"), [((9000, 9000), "9000x9000"), ((9500, 10000), "9500x10000"), ((60_000, 60_000), "3,600,000,000")]
)
def test_bombs_are_refused(tmp_path, size, told):
    (tmp_path / "bomb.png").write_bytes(png_header(*size))
    with pytest.raises(DataError, match=rf"bomb\.png: {told} pixels, more than the limit of 80,000,000; scale"):
        open_image(tmp_path / "bomb.png")


def test_pillows_own_warning_is_not_told_beside_the_error(tmp_path):
    (tmp_path / "a.png").write_bytes(png_header(10_000, 9_000))
    code = "import sys; from lexvl_anserini.data.pictures.images import open_image; open_image(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.png"], capture_output=True, text=True)
    assert "10000x9000 pixels, more than the limit of 80,000,000" in done.stderr
    assert "Warning" not in done.stderr


def test_the_limit_holds_for_opened_pictures_that_are_not_decoded_yet(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_header(9000, 9000))
    opened = Image.open(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"PIL image .*bomb\.png: 9000x9000 pixels, more than the limit"), opened:
        open_image(opened)
    with pytest.raises(DataError, match="PIL image: 0x4 pixels, expected at least 1x1"):
        open_image(Image.new("RGB", (0, 4)))
    with pytest.raises(DataError, match="PIL image: 100x100 pixels, more than the limit of 9,999"):
        open_image(Image.new("L", (100, 100)), max_pixels=9_999)


def test_postscript_is_not_run_whatever_its_name(tmp_path):
    (tmp_path / "fake.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match=r"fake\.jpg: not a picture of a known format \(it begins with b'%!PS-Ado'"):
        open_image(tmp_path / "fake.jpg")
    assert {".jpg", ".jfif", ".jpe", ".jp2", ".ppm", ".tga", ".dds"} <= list_image_suffixes()
    assert not {".eps", ".ps", ".pdf", ".wmf", ".emf", ".mpg", ".h5"} & list_image_suffixes()


def test_damaged_and_cut_off_bytes_never_raise_anything_else(tmp_path):
    random = np.random.default_rng(1)
    noise = Image.fromarray(random.integers(0, 255, (64, 64, 3), np.uint8))
    path = tmp_path / "damaged"
    kinds = ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "DDS", "BLP", *(["AVIF"] if features.check("avif") else [])]
    for kind in kinds:
        data = stored(noise.convert("P") if kind == "BLP" else noise, kind)
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(DataError, match=f"^{path}: "):
            open_image(path)
        for _ in range(25):
            damaged = bytearray(data)
            for place in random.integers(0, len(data), 8):
                damaged[place] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            try:
                assert open_image(path).mode == "RGB"
            except DataError as problem:
                assert str(problem).startswith(str(path))


@pytest.mark.parametrize(("kind", "mode", "at", "method"), [("DDS", "RGB", 80, 4), ("BLP", "P", 4, 77)])
def test_what_pillow_does_not_implement_is_told_or_skipped(tmp_path, kind, mode, at, method):
    """A compression without a name, which Pillow's own plugins refuse with a `NotImplementedError`."""
    data = bytearray(stored(Image.new(mode, (4, 4)), kind))
    data[at : at + 4] = struct.pack("<I", method)
    (tmp_path / "odd").write_bytes(data)
    with pytest.raises(DataError, match=r"odd: a damaged or cut off picture \(.*"):
        open_image(tmp_path / "odd")
    policy = OnError("skip")
    assert list(read_images([tmp_path / "odd"], on_error=policy)) == [] and len(policy.skipped) == 1


def test_members_are_read_by_many_threads_and_again_when_they_change(tmp_path):
    members = {f"m{number}": bytes([number]) * (1 + 700 * number) for number in range(60)}
    archive = open_archive(tar_of(tmp_path / "a.tar", members))
    assert open_archive(tmp_path / "a.tar") is archive
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: {name: archive.read(name) for name in members}, range(4)))
    assert found == [members] * 4
    path = tar_of(tmp_path / "a.tar", {"x": b"1"})
    assert open_archive(path).read("x") == b"1"
    tar_of(path, {"y": b"22" * 9000})
    assert set(open_archive(path).members) == {"y"}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("fake.jpg", r"fake\.jpg: not a picture of a known format \(it begins with b'<html>40'\)"),
        ("empty.jpg", r"empty\.jpg: not a picture of a known format \(it is empty\)"),
        ("absent.jpg", r"absent\.jpg: cannot be read \(No such file"),
        ("", "cannot be read"),
        ("whole.tar::c.png", r"whole\.tar: no member 'c\.png' among its 2 files"),
        ("cut.tar::a.png", r"cut\.tar: "),
        ("packed.tar::a.png", r"packed\.tar: not an uncompressed tar archive"),
        ("absent.tar::a.png", r"absent\.tar: cannot be read"),
        ("packed.tar.gz::a.png", r"a member is named archive\.tar::member"),
    ],
)
def test_what_is_no_picture(tmp_path, reference, message):
    picture = stored(left_red_right_blue())
    whole = tar_of(tmp_path / "whole.tar", {"a.png": picture, "b.png": picture * 50})
    tar_of(tmp_path / "packed.tar", {"a.png": picture}, "w:gz")
    contents = {"cut.tar": whole.read_bytes()[:2600], "fake.jpg": b"<html>404</html>", "empty.jpg": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_image(f"{tmp_path}/{reference}")


def grey(value):
    return Image.new("L", (2, 2), value)


def test_order_is_kept_however_long_each_takes():
    def slowly(image):
        value = image.getpixel((0, 0))[0]
        time.sleep(0.02 if value % 3 == 0 else 0)
        return value

    reader = read_images(map(grey, range(30)), workers=4, prepare=slowly)
    assert [(one.position, one.value) for one in reader] == [(number, number) for number in range(30)]


def test_references_are_taken_only_a_little_ahead():
    taken = []

    def references():
        for number in range(1000):
            taken.append(number)
            yield grey(number % 256)

    reader = read_images(references(), workers=2)
    for seen, _ in zip(range(1, 50), reader, strict=False):
        assert len(taken) <= seen + 2 * AHEAD
    reader.close()
    assert len(taken) < 60
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("images")]


def test_failing_and_skipping(tmp_path):
    good = saved(tmp_path, grey(9))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    references = [good, tmp_path / "bad.png", good, tmp_path / "absent.png", good]
    failing = iter(read_images(references))
    assert next(failing).position == 0
    with pytest.raises(DataError, match=r"bad\.png: not a picture"):
        next(failing)
    assert FAIL.skipped == [], "all callers share it"
    policy = OnError("skip")
    assert [image.position for image in read_images(references, on_error=policy)] == [0, 2, 4]
    skipped = [(skip.position, Path(skip.reference).name) for skip in policy.skipped]
    assert skipped == [(1, "bad.png"), (3, "absent.png")]
    assert "not a picture of a known format" in policy.skipped[0].reason
    with pytest.raises(UsageError, match="on_error 'ignore': expected fail or skip"):
        OnError("ignore")


def test_errors_of_prepare_and_of_the_references_are_the_callers():
    def broken(image):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        list(read_images([grey(1)], on_error=OnError("skip"), prepare=broken))

    def references():
        yield grey(1)
        yield grey(2)
        raise DataError("corpus line 3: malformed")

    seen = []
    with pytest.raises(DataError, match="corpus line 3"):
        seen.extend(iter(read_images(references(), on_error=OnError("skip"))))
    reader = read_images(references())
    assert [next(reader).position, next(reader).position] == [0, 1]


def test_cores_where_the_system_has_no_affinity(monkeypatch):
    """MacOS has none."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert count_usable_cores() == 3
