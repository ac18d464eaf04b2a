import logging
import os
import tarfile
from importlib.util import find_spec

import pytest
from PIL import Image

from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.corpora.captioned import read_captioned_images
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.lines import read_lines
from lexvl_anserini.data.parquet import read_schema
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.ground.errors import DataError, LexvlError, UsageError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import CorpusRef, Document


def folder_of(tmp_path, **files):
    for name, content in files.items():
        path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def documents(folder, **options):
    return list(load_dataset(f"folder:{folder}", **options).documents())


def test_texts_in_the_order_of_their_paths(tmp_path):
    others = {"notes_DOT_md": b"not read", "_DOT_hidden_DOT_txt": b"not read"}
    folder_of(tmp_path, b_DOT_txt=b"\xef\xbb\xbfsecond\n", a__z_DOT_txt=b"first", c_DOT_TXT=b"", **others)
    (tmp_path / "a-b.txt").write_text("before a/z")
    expected = {"a-b": "before a/z", "a/z": "first", "b": "second", "c": ""}
    assert documents(tmp_path) == [Document(doc_id, text=text) for doc_id, text in expected.items()]
    assert check_corpus(load_dataset(f"folder:{tmp_path}").documents, "here").documents == 4


def test_images_with_and_without_captions(tmp_path):
    folder_of(tmp_path, x_DOT_jpg=b"-", x_DOT_txt=b"a dog\n", y_DOT_PNG=b"-", z_DOT_webp=b"-")
    folder_of(tmp_path, z_DOT_webp_DOT_txt=b"a cat")
    expected = {"x.jpg": "a dog", "y.PNG": None, "z.webp": "a cat"}
    images = [Document(name, text=text, image=f"{tmp_path}/{name}") for name, text in expected.items()]
    assert documents(tmp_path) == images


def test_what_is_left_out_is_counted_once(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_jpg=b"-", b_DOT_md=b"-", c__d_DOT_md=b"-", c__e_DOT_pdf=b"-", _DOT_hidden_DOT_md=b"-")
    caplog.set_level("INFO")
    assert len(documents(tmp_path)) == len(documents(tmp_path)) == 1
    assert caplog.messages == [
        f"{tmp_path}: skipped, hidden: 1 (.hidden.md)",
        f"{tmp_path}: skipped, neither image nor text: 3 (2 .md, 1 .pdf)",
    ]


def test_a_text_among_pictures_is_told_with_its_path(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_jpg=b"-", a_DOT_txt=b"a caption", notes_DOT_txt=b"no caption", z_DOT_txt=b"no caption")
    caplog.set_level("INFO")
    assert len(documents(tmp_path, direction="text-to-text")) == 3
    assert caplog.messages == []
    assert documents(tmp_path) == documents(tmp_path)
    told = "a text without an image of its name; it is a document of its own"
    assert caplog.messages == [f"{tmp_path}/notes.txt: {told}"]


def test_pictures_alone(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_jpg=b"-", a_DOT_txt=b"a caption", b_DOT_txt=b"no caption", corpus_DOT_jsonl=b"-")
    (tmp_path / "c d.jpg").write_bytes(b"-")
    caplog.set_level("INFO")
    found = load_pictures(CorpusRef(f"folder:{tmp_path}", escape_ids=True))
    assert list(found.documents()) == [
        Document("a.jpg", text="a caption", image=f"{tmp_path}/a.jpg"),
        Document("c%20d.jpg", image=f"{tmp_path}/c d.jpg"),
    ]
    assert (found.name, found.direction, found.escape_ids) == (f"folder:{tmp_path}", "text-to-image", True)
    assert caplog.messages == [
        f"{tmp_path}: skipped, a text that is no caption: 1 (b.txt)",
        f"{tmp_path}: skipped, neither image nor text: 1 (1 .jsonl)",
    ]
    for picture in tmp_path.glob("*.jpg"):
        picture.unlink()
    with pytest.raises(DataError, match=f"{tmp_path}: no picture in it; expected .jpg, .png, ..."):
        load_pictures(CorpusRef(f"folder:{tmp_path}"))
    with pytest.raises(UsageError, match=f"folder:{tmp_path} has its pictures and texts, pictures:"):
        load_dataset(str(tmp_path))


def test_captions_are_named_as_their_pictures_with_suffixes_in_any_case(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_Jpg=b"-", a_DOT_txt=b"a caption", b_DOT_jpg=b"-", b_DOT_TXT=b"its", B_DOT_txt=b"a text")
    (tmp_path / "b.jpg.TXT").symlink_to("b.TXT")
    found = [(doc.doc_id, doc.text) for doc in documents(tmp_path)]
    assert found == [("B", "a text"), ("a.Jpg", "a caption"), ("b.jpg", "its")]
    assert not any("second caption" in message for message in caplog.messages)


def test_a_tar_is_read_as_the_folder_it_was_made_of(tmp_path):
    folder = tmp_path / "in"
    folder_of(folder, b_DOT_jpg=b"-", b_DOT_txt=b"b\n", a__z_DOT_png=b"-", a_DOT_txt=b"a")
    folder_of(folder, _DOT_x_DOT_jpg=b"-", y_DOT_md=b"")
    (folder / "a-b.txt").write_text("before a/z")
    packed = tmp_path / "{in}.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(folder, ".")
    found = [(doc.doc_id, doc.text, doc.image and doc.image.replace(f"{packed}::", "")) for doc in documents(packed)]
    expected = [(doc.doc_id, doc.text, doc.image and doc.image.replace(f"{folder}/", "")) for doc in documents(folder)]
    assert found == expected and len(found) == 4
    with pytest.raises(DataError, match=r"in}\.tar: a plain folder has no topics"):
        load_dataset(f"folder:{packed}").topics()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dmo", "did you mean 'demo'"),
        ("folder", "names no folder; expected folder:<path>"),
        ("folder:{}/absent", "absent: no such folder"),
        ("folder:{}/sub", "no corpus.jsonl and no file to read in it; expected .*jpg.*txt"),
        ("folder:{}/x.tar.gz", r"x\.tar\.gz: neither a folder nor an uncompressed \.tar; unpack it"),
        ("folder:{}/x.tar", r"x\.tar: not an uncompressed tar archive"),
        ("folder:{}/y.tar", r"y\.tar: no such folder or tar"),
        *((name, "names no dataset") for name in ("beir", "beir/", "beir/../etc")),
        ("beir/scfact", r"unknown BEIR dataset 'scfact'; did you mean 'scifact'\? known: .*tiny"),
        ("beir:{}/absent", "absent: no such folder; expected corpus.jsonl"),
        ("beir:{}/x.tar", "x.tar: no folder; expected corpus.jsonl"),
        ("beir:{}/sub", "sub: no corpus.jsonl in it"),
        ("demo/tets", "unknown split of demo 'tets'; did you mean 'test'"),
        *((name, "names no folder") for name in ("embeddings", "embeddings:", "embeddings:,x")),
        *((f"embeddings:{place}", "no such folder of embeddings") for place in ("./x", "x", "{}/x.tar")),
        ("embeddings:lsr42/nothing", "nothing: no such folder"),
        *((name, "expected irds:<id>, such as irds:beir/scifact/test") for name in ("irds", "irds:", "irds/mine")),
        ("karpathy", "names no file; expected karpathy:<json>"),
        ("karpathy:{}/absent.json", r"absent\.json: cannot be read"),
        *(
            (name, f"^{name}: .* has no place in its name, its files are in the data")
            for name in ("coco:", "flickr8k:/nowhere", "flickr30k:x/y", "demo:x", "samples:/nowhere")
        ),
    ],
)
def test_what_is_no_corpus(tmp_path, name, message):
    folder_of(tmp_path, x_DOT_tar_DOT_gz=b"-", x_DOT_tar=b"-" * 600, sub__notes_DOT_md=b"x", tiny__corpus_DOT_jsonl=b"")
    with pytest.raises(LexvlError, match=message):
        load_dataset(name.format(tmp_path), data_dir=str(tmp_path))


def test_a_bare_corpus_has_any_direction_and_no_judgements(tmp_path):
    folder_of(tmp_path, corpus_DOT_jsonl=b'{"_id": "d", "text": "t"}')
    data = load_dataset(f"folder:{tmp_path}", "test", direction="image-to-text")
    assert data.direction == "image-to-text" and [d.doc_id for d in data.documents()] == ["d"]
    with pytest.raises(DataError, match="no judgements of split 'test'"):
        list(data.qrels())
    with pytest.raises(DataError, match="no judgements of split 'dev'"):
        load_dataset(f"folder:{tmp_path}", "dev")


def test_a_plain_folder_has_documents_only(tmp_path):
    data = load_dataset(f"folder:{folder_of(tmp_path, a_DOT_txt=b'x')}")
    with pytest.raises(DataError, match=r"has no topics; --topics \(query_id, tab, text\) names a file of them"):
        data.topics()
    with pytest.raises(DataError, match="a plain folder has no judgements; --qrels names a file of them"):
        data.qrels()
    with pytest.raises(DataError, match="split 'test' of a plain folder"):
        load_dataset(f"folder:{tmp_path}", "test")


def test_names_with_white_space_and_texts_that_are_not_utf8(tmp_path):
    (tmp_path / "my dog.jpg").write_bytes(b"-")
    with pytest.raises(DataError, match=r"my dog\.jpg: white space in id 'my dog\.jpg'.*--escape-ids"):
        documents(tmp_path)
    folder_of(tmp_path, z_DOT_txt=b"caf\xe9")
    stream = load_dataset(f"folder:{tmp_path}", escape_ids=True).documents()
    assert next(stream).doc_id == "my%20dog.jpg"
    with pytest.raises(DataError, match=r"z\.txt: not valid UTF-8 \(byte 4\)"):
        next(stream)


def test_file_names_that_are_not_utf8(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system refuses such names")
    for name in (os.fsdecode(b"caf\xe9"), "\ud800"):
        with pytest.raises(DataError, match="the folder's name is not valid UTF-8; rename it"):
            load_dataset(f"folder:{name}")
    with pytest.raises(DataError, match="the file's name is not valid UTF-8; rename it"):
        documents(tmp_path)


def test_links_to_folders_are_not_followed_but_named(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_txt=b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [doc.doc_id for doc in documents(tmp_path)] == ["a"]
    assert caplog.messages == [f"{tmp_path}: skipped, a link to a folder: 1 (loop)"]


def test_pipes_are_named_and_never_opened(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_png=b"x")
    os.mkfifo(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("b.png")
    assert documents(tmp_path) == [Document("a.png", image=f"{tmp_path}/a.png")]
    assert caplog.messages == [f"{tmp_path}: skipped, a pipe, a socket or a device: 3 (a.txt, b.png, c.png)"]
    with pytest.raises(DataError, match="b.png: a pipe, a socket or a device, expected the file of a picture"):
        open_image(tmp_path / "b.png")


@pytest.mark.parametrize("target", ["c.png", "gone.png"])
def test_links_in_a_circle_or_to_nothing_are_files_that_cannot_be_read(tmp_path, target):
    folder_of(tmp_path, a_DOT_png=b"x")
    (tmp_path / "b.png").symlink_to(target)
    if target == "c.png":
        (tmp_path / "c.png").symlink_to("b.png")
    names = ["a.png", "b.png", *(["c.png"] if target == "c.png" else [])]
    assert [doc.doc_id for doc in documents(tmp_path)] == names
    with pytest.raises(DataError, match="b.png: cannot be read"):
        open_image(tmp_path / "b.png")
    (tmp_path / "d.txt").symlink_to("d.txt" if target == "c.png" else "gone.txt")
    with pytest.raises(DataError, match=r"d\.txt: cannot be read"):
        documents(tmp_path)


def test_of_two_captions_the_second_is_named(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_jpg=b"x", a_DOT_txt=b"one", a_DOT_jpg_DOT_txt=b"two")
    assert [doc.text for doc in documents(tmp_path)] == ["one"]
    assert caplog.messages == [f"{tmp_path}: skipped, a second caption of an image: 1 (a.jpg.txt)"]


def test_a_pointer_of_git_lfs_is_named_with_its_remedy(tmp_path):
    readers = {"a.jpg": open_image, "a.tar": open_archive, "a.parquet": read_schema}
    readers |= {"a.jsonl.gz": lambda path: next(read_lines(path)), "a.json": lambda path: read_json(path, "vocabulary")}
    readers |= {"b.json": lambda path: read_captioned_images(path, "test"), "a.txt": lambda _: documents(tmp_path)}
    readers |= {"a.safetensors": lambda path: find_checkpoint(f"{path.parent}"), "b.pt": find_checkpoint}
    for name, read in readers.items():
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
        with pytest.raises(LexvlError, match=f"{name}: a pointer of Git LFS .*; git lfs pull fetches it"):
            read(tmp_path / name)
        (tmp_path / name).unlink()


HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic"


@pytest.mark.skipif(find_spec("pillow_heif") is not None, reason="pillow-heif is installed, so HEIC is read")
def test_heic_is_counted_with_what_to_do_about_it(tmp_path, caplog):
    folder_of(tmp_path, a_DOT_jpg=b"x", b_DOT_HEIC=HEIC, c__d_DOT_heif=HEIC, e_DOT_md=b"x")
    remedy = "install the package pillow-heif, or convert to JPEG"
    assert [doc.doc_id for doc in documents(tmp_path)] == ["a.jpg"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"{tmp_path}: skipped, HEIC pictures ({remedy}): 2 (b.HEIC, c/d.heif)"]
    (tmp_path / "a.jpg").write_bytes(HEIC)
    with pytest.raises(DataError, match=f"a.jpg: a HEIC picture; {remedy}"):
        open_image(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match=rf"no file to read in it; .*; it has HEIC pictures \(2\): {remedy}"):
        documents(tmp_path)


def test_heic_is_read_where_pillow_heif_is_installed(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    picture = Image.new("RGB", (64, 32), (255, 0, 0))
    picture.paste((0, 0, 255), (32, 0, 64, 32))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    pillow_heif.from_pillow(picture).save(tmp_path / "a.heic", exif=exif.tobytes(), quality=95)
    assert documents(tmp_path) == [Document("a.heic", image=f"{tmp_path}/a.heic")]
    seen = open_image(tmp_path / "a.heic")
    assert (seen.mode, seen.size) == ("RGB", (32, 64))
    assert seen.getpixel((16, 4))[0] > 200 and seen.getpixel((16, 60))[2] > 200
    (tmp_path / "b.heic").write_bytes((tmp_path / "a.heic").read_bytes()[:300])
    with pytest.raises(DataError, match="b.heic: "):
        open_image(tmp_path / "b.heic")
