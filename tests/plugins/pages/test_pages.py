"""`pages:<path>`: pages as documents, read in processes that may crash or hang, encoded; and the command."""

import os
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from byte_towers import tree
from corpus_folders import tar_of
from PIL import Image
from word_towers import TEXT, PictureTower, lines, model_of

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import ArtefactError, DataError, MissingExtra, UnreadableImage, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.records import CorpusRef, get_document_id
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.pages import corpus, reading
from lexvl_plugins.pages.answers import EDGE, INK, cut_snippet, draw_frames, match_words
from lexvl_plugins.pages.page import Box, Word, join_words
from lexvl_plugins.pages.pages import command
from tests.plugins.pages import page_faults
from tests.plugins.pages.pdf_files import large_jpeg, locked_pdf, many_pages, pdf_of, words_at

pytestmark = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("pebble", "pypdfium2", "rapidocr")),
    reason="the extra is not installed: pip install 'lexvl-anserini[pages]'",
)

SMALL = Layout(shard_size=2)
TEXTS, PICTURES = model_of(), model_of(PictureTower())


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """An empty memory."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / reading.MEMORY


@pytest.fixture
def folder(tmp_path):
    """Two PDFs with five pages, and files without pages."""
    folder = tmp_path / "papers"
    (folder / "b").mkdir(parents=True)
    (folder / "a.pdf").write_bytes(pdf_of(*(words_at(20, 300, f"cat dog {n}") for n in range(3))))
    (folder / "b/c.PDF").write_bytes(pdf_of(words_at(20, 300, "fox"), words_at(20, 300, "elm elm")))
    (folder / "locked.pdf").write_bytes(locked_pdf())
    (folder / "empty.pdf").write_bytes(b"")
    (folder / "html.pdf").write_bytes(b"<html>")
    (folder / "no.png").write_bytes(b"no picture")
    (folder / "notes.md").write_bytes(b"not read")
    (folder / ".hidden.pdf").write_bytes(b"not read")
    return folder


def loaded(path, **options):
    return load_dataset(f"pages:{path}", **options)


def documents(path, **options):
    return list(loaded(path, **options).documents())


def encode(output, path, model, **options):
    return write_impacts(loaded(path), model, output, layout=SMALL, **options)


def damaged(path):
    """Three pages, of which the second is damaged."""
    path.write_bytes(pdf_of(*(words_at(20, 300, "cat") for _ in range(3))).replace(b"12 0 obj", b"99 0 obj"))
    return path


# --- documents ------------------------------------------------------------------------------------------------------


def test_every_page_is_a_document_and_every_other_file_is_named(folder, caplog):
    caplog.set_level("INFO", "lexvl_anserini")
    read = documents(folder)
    assert [(document.doc_id, document.text) for document in read] == [
        *(("a.pdf#1", "cat dog 0"), ("a.pdf#2", "cat dog 1"), ("a.pdf#3", "cat dog 2")),
        *(("b/c.PDF#1", "fox"), ("b/c.PDF#2", "elm elm")),
    ]
    assert read[3].image == f"{folder}/b/c.PDF#1" and read[3].problem is None
    assert read[3].metadata == {"file": "b/c.PDF", "page": 1, "words": "text layer"}
    assert sorted(message.removeprefix(f"{folder}: ") for message in caplog.messages) == [
        "pages: 5 text layer",
        "skipped, a password protects it: 1 (locked.pdf)",
        "skipped, hidden: 1 (.hidden.pdf)",
        "skipped, it is empty: 1 (empty.pdf)",
        "skipped, neither PDF nor picture: 1 (1 .md)",
        "skipped, not a PDF, or a damaged one: 1 (html.pdf)",
        "skipped, not a picture of a known format: 1 (no.png)",
    ]


def test_a_file_and_a_tar_have_the_same_pages(tmp_path, folder):
    read = documents(folder)
    alone = documents(folder / "a.pdf")
    assert alone == read[:3]
    packed = tar_of(tmp_path / "papers.tar", {"a.pdf": (folder / "a.pdf").read_bytes()})
    assert [document.text for document in documents(packed)] == [document.text for document in alone]
    references = [reference.image for reference in documents(packed)]
    assert references[2] == f"{packed}::a.pdf#3" == corpus.find_reference(CorpusRef(f"pages:{packed}"), "a.pdf#3")
    assert corpus.find_reference(CorpusRef(f"pages:{folder}"), "b/c.PDF#1") == read[3].image
    assert open_image(references[2]).tobytes() == open_image(alone[2].image).tobytes()
    with FileDigests() as files:
        assert files.of(references[2]) == files.of(alone[0].image) == compute_sha256(folder / "a.pdf")


def test_pages_of_pictures_have_the_words_of_ocr(tmp_path):
    blank = [Image.new("RGB", (40, 20), "white") for _ in range(2)]
    blank[0].save(tmp_path / "a b.tif", save_all=True, append_images=blank[1:])
    with pytest.raises(DataError, match="white space in id 'a b.tif#1'"):
        documents(tmp_path)
    read = documents(tmp_path, escape_ids=True)
    assert [document.doc_id for document in read] == ["a%20b.tif#1", "a%20b.tif#2"]
    assert [(document.text, document.metadata["words"]) for document in read] == [("", "ocr")] * 2
    assert corpus.find_reference(CorpusRef(f"pages:{tmp_path}", escape_ids=True), read[1].doc_id) == read[1].image
    assert join_words(reading.read_words(str(tmp_path / "a b.tif")).words) == ""


def test_a_page_of_a_file_with_a_number_sign_is_a_passage_of_that_file_alone(tmp_path):
    for name in ("a#b.png", "a#c.png"):
        Image.new("RGB", (40, 20), "white").save(tmp_path / name)
    with pytest.raises(DataError, match="a#b.png#1: '#' in the file's name, .*; --escape-ids encodes it"):
        documents(tmp_path)
    read = documents(tmp_path, escape_ids=True)
    assert [get_document_id(document.doc_id) for document in read] == ["a%23b.png", "a%23c.png"]
    assert corpus.find_reference(CorpusRef(f"pages:{tmp_path}", escape_ids=True), read[1].doc_id) == read[1].image
    assert read[1].image == f"{tmp_path}/a#c.png#1"


def test_a_picture_of_any_size_is_decoded_in_bounds(tmp_path):
    (tmp_path / "a.jpg").write_bytes(large_jpeg(20_000))
    assert open_image(f"{tmp_path}/a.jpg#1").size == (reading.LONGEST, reading.LONGEST)


def test_pages_are_read_when_they_are_needed(tmp_path, monkeypatch):
    (tmp_path / "a.pdf").write_bytes(many_pages(10_000, words_at(20, 300, "same")))
    calls = []
    start = reading.start
    monkeypatch.setattr(reading, "start", lambda *call: (calls.append(call), start(*call))[1])
    stream = loaded(tmp_path).documents()
    assert [document.doc_id for document in islice(stream, 2)] == ["a.pdf#1", "a.pdf#2"]
    assert len(calls) <= 1 + 2 + reading.AHEAD * reading.count_workers()


def test_what_is_no_corpus_of_pages(tmp_path, folder, monkeypatch):
    (tmp_path / "none").mkdir()
    (tmp_path / "none/a.txt").write_text("no page")
    with pytest.raises(DataError, match="no file with pages in it; expected .pdf, .tif, .jpg"):
        loaded(tmp_path / "none")
    with pytest.raises(DataError, match="split 'test' of pages, which have no splits"):
        loaded(folder, split="test")
    with pytest.raises(DataError, match="a plain folder has no topics"):
        list(loaded(folder).topics())
    monkeypatch.setattr("lexvl_anserini.ground.registry.find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=r"pebble is not installed.*lexvl-anserini\[pages\]"):
        loaded(folder)


# --- the memory -----------------------------------------------------------------------------------------------------


def test_a_second_read_starts_no_process_and_a_changed_file_is_read_again(folder, monkeypatch):
    first = documents(folder)
    for name in ("locked.pdf", "empty.pdf", "html.pdf", "no.png"):  # they are opened again
        (folder / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(reading, "start", lambda *call: pytest.fail(f"reads {call}"))
        assert documents(folder) == first
    (folder / "a.pdf").write_bytes(pdf_of(words_at(20, 300, "other")))
    assert [document.text for document in documents(folder)] == ["other", "fox", "elm elm"]


@pytest.mark.parametrize("content", [b"no memory", None])
def test_a_damaged_memory_is_written_anew(folder, memory, content):
    first = documents(folder)
    if content is None:
        memory.unlink()
    else:
        memory.write_bytes(content)
    assert documents(folder) == first == documents(folder)


def test_a_page_that_took_too_long_is_remembered_for_its_limits(folder, monkeypatch):
    path = f"{folder}/a.pdf#1"
    with monkeypatch.context() as patch:
        patch.setattr(reading, "wait_for", lambda call, where: (_ for _ in ()).throw(reading.Overdue(f"{where}: slow")))
        with pytest.raises(DataError, match=r"a\.pdf#1: slow"):
            reading.read_words(path)
    with pytest.raises(DataError, match=r"a\.pdf#1: more than 60 s of CPU time \(LEXVL_PAGE_SECONDS\), remembered"):
        reading.read_words(path)
    monkeypatch.setattr(reading.Limits, "from_environment", lambda: reading.Limits(61.0))
    assert join_words(reading.read_words(path).words) == "cat dog 0"


# --- processes ------------------------------------------------------------------------------------------------------


def called(function):
    return reading.wait_for(reading.start(function), "a.pdf#1")


def test_a_crash_is_one_line_and_the_next_call_works():
    with pytest.raises(DataError, match=r"^a\.pdf#1: its reading crashed \(SIGSEGV\), perhaps beyond 3 GB"):
        called(page_faults.crash)
    assert called(os.getpid) != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory of a process")
def test_memory_is_bounded():
    with pytest.raises(DataError, match=r"^a\.pdf#1: more than 3 GB of memory \(LEXVL_PAGE_GB\)"):
        called(page_faults.take_memory)
    assert called(page_faults.limit_of_memory) == 3_000_000_000


def test_errors_of_other_libraries_are_one_line():
    with pytest.raises(DataError, match=r"^a\.pdf#1: cannot be read \(RuntimeError: KeyError: 'of another library'\)"):
        called(page_faults.fail)


def test_what_computes_without_end_is_stopped_by_its_cpu_time(monkeypatch):
    monkeypatch.setenv(reading.SECONDS, "0.5")
    with pytest.raises(reading.Overdue, match=r"^a\.pdf#1: more than 0\.5 s of CPU time \(LEXVL_PAGE_SECONDS\)"):
        called(page_faults.compute)
    assert called(os.getpid) != os.getpid()


def test_what_waits_without_end_is_stopped_by_the_clock_and_not_remembered(folder, monkeypatch):
    path = f"{folder}/a.pdf#1"
    with monkeypatch.context() as patch:
        patch.setenv(reading.SECONDS, "0.5")
        patch.setattr(reading, "PATIENCE", 1)
        with pytest.raises(DataError, match=r"^a\.pdf#1: not read after 0\.5 s of the clock") as caught:
            called(page_faults.wait)
        patch.setattr(reading, "wait_for", lambda call, where: (_ for _ in ()).throw(caught.value))
        with pytest.raises(DataError, match="of the clock"):
            reading.read_words(path)
    assert not isinstance(caught.value, reading.Overdue)
    assert join_words(reading.read_words(path).words) == "cat dog 0"


def test_cpu_time_of_earlier_calls_does_not_count(monkeypatch):
    monkeypatch.setenv(reading.SECONDS, "1.5")
    for _ in range(2 * reading.count_workers() + 1):
        assert called(page_faults.compute_a_second) > 0


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_limits_are_numbers(text, monkeypatch):
    monkeypatch.setenv(reading.GIGABYTES, text)
    with pytest.raises(UsageError, match="LEXVL_PAGE_GB='.*': expected a number above 0"):
        reading.start(os.getpid)


# --- encoding -------------------------------------------------------------------------------------------------------


def test_words_and_pictures_are_encoded_under_the_same_ids(tmp_path, folder):
    by_words, by_pictures = encode(tmp_path / "words", folder, TEXTS), encode(tmp_path / "pictures", folder, PICTURES)
    ids = [
        [row["id"] for path in sorted((tmp_path / name / "docs").iterdir()) for row in lines(path)]
        for name in ("words", "pictures")
    ]
    assert ids[0] == ids[1] and len(ids[0]) == 5 == by_words.counts.documents == by_pictures.counts.documents
    assert by_words.corpus.digest == by_pictures.corpus.digest
    assert by_words.corpus.contents is None and by_pictures.corpus.contents is not None


@pytest.mark.parametrize("model", [TEXTS, PICTURES, TEXT], ids=["words", "pictures", "text"])
def test_a_page_that_cannot_be_read_is_an_error_or_skipped(tmp_path, model):
    path = damaged(tmp_path / "a.pdf")
    with pytest.raises(UnreadableImage, match=r"a\.pdf#2: a damaged page"):
        encode(tmp_path / "out", path, model)
    manifest = encode(tmp_path / "out", path, model, on_error="skip")
    assert (manifest.counts.documents, manifest.counts.skipped, manifest.corpus.documents) == (2, 1, 3)
    (row,) = lines(tmp_path / "out/skipped.jsonl")
    assert (row["id"], row["image"]) == ("a.pdf#2", f"{path}#2") and "a damaged page" in row["reason"]


def test_a_stopped_encoding_goes_on_and_parts_are_the_whole(tmp_path, folder, monkeypatch):
    from lexvl_anserini.shards import writing

    whole = encode(tmp_path / "whole", folder, PICTURES)
    encode_shard, calls = writing.encode_shard, []

    def stops(batch, *rest):
        calls.append(batch[0].doc_id)
        if len(calls) == 2:
            raise MemoryError
        return encode_shard(batch, *rest)

    monkeypatch.setattr(writing, "encode_shard", stops)
    with pytest.raises(MemoryError):
        encode(tmp_path / "out", folder, PICTURES)
    encode(tmp_path / "out", folder, PICTURES)
    assert calls == ["a.pdf#1", "a.pdf#3", "a.pdf#3", "b/c.PDF#2"]
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    parts = [encode(tmp_path / f"part{n}", folder, PICTURES, part=Part(n, 2)) for n in range(2)]
    assert sum(part.counts.documents for part in parts) == whole.counts.documents == 5
    assert {part.corpus.digest for part in parts} == {whole.corpus.digest}


def test_a_page_with_the_same_words_and_another_picture_is_another_request(tmp_path, folder):
    encode(tmp_path / "words", folder, TEXTS)
    encode(tmp_path / "pictures", folder, PICTURES)
    drawn = (words_at(20, 300, f"cat dog {n}") + " 0 0 50 50 re f" for n in range(3))
    (folder / "a.pdf").write_bytes(pdf_of(*drawn))
    encode(tmp_path / "words", folder, TEXTS)
    with pytest.raises(ArtefactError, match="pictures"):
        encode(tmp_path / "pictures", folder, PICTURES)


WHOLE = Box(0, 0, 1, 1)


def page_of(*texts: str) -> str:
    """The content of a page with some lines."""
    return "\n".join(words_at(20, 390 - 20 * line, text) for line, text in enumerate(texts))


@pytest.fixture
def papers(tmp_path, monkeypatch):
    """Three pages in two PDFs, and files that cannot be read; the working folder is beside them."""
    folder = tmp_path / "my papers"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b.pdf").write_bytes(pdf_of(page_of("terms of payment", "thirty days"), page_of("a red boat")))
    (folder / "sub/c.pdf").write_bytes(pdf_of(page_of("boats on the lake", "payments")))
    (folder / "locked.pdf").write_bytes(locked_pdf())
    (folder / "empty.pdf").touch()
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    return folder


def printed(capsys, folder: Path, *queries: str, **options) -> list[str]:
    command(folder=folder, queries=list(queries), **options)
    return capsys.readouterr().out.splitlines()


def test_a_folder_is_indexed_asked_and_drawn(papers, capsys, caplog) -> None:
    caplog.set_level("INFO")
    lines = printed(capsys, papers, "boats", "terms of payment")
    assert lines[0] == "3 pages in the index"
    assert lines[2] == '"boats"' and lines[6] == '"terms of payment"' and len(lines) == 12
    # Stop words do not count: "boat" is one word of 2 on the first page, and one of 3 on the second.
    assert [line.split()[2:] for line in lines[3:5]] == [
        ["a", "b.pdf#2", "boat", "100%"],
        ["sub/c.pdf#1", "boat", "100%"],
    ]
    assert [line.split()[2:-2] for line in lines[7:9]][0][:3] == ["a", "b.pdf#1", "term"]
    left_out = "\n".join(caplog.messages)
    assert "a password protects it: 1 (locked.pdf)" in left_out and "it is empty: 1 (empty.pdf)" in left_out
    with Image.open("lexvl-pages/my papers/contact-sheet.png") as sheet:
        assert sheet.height == 24 + 2 * (256 + 40 + 5 * 29 + 2 * 24 + 36) + 17


def test_a_second_call_reads_nothing_and_follows_changes(papers, capsys, monkeypatch) -> None:
    printed(capsys, papers)
    index = Path("lexvl-pages/my papers/index")
    before = index.stat().st_ino
    start, calls = reading.start, []
    with monkeypatch.context() as patch:
        patch.setattr(reading, "start", lambda *call: (calls.append(call[0].__name__), start(*call))[1])
        lines = printed(capsys, papers)
    assert set(calls) == {"count_pages"}, "files without pages are tried again"
    assert lines[0] == "3 pages in the index" and lines[1].startswith("to ask: lexvl pages")
    assert index.stat().st_ino == before
    (papers / "sub/c.pdf").unlink()
    (papers / "d.pdf").write_bytes(pdf_of(page_of("a boat"), page_of("two boats"), page_of("no ship")))
    lines = printed(capsys, papers, "boat")
    assert lines[0] == "5 pages in the index"
    assert {line.split()[2] for line in lines[3:6]} == {"d.pdf#1", "d.pdf#2", "a"}


def test_a_damaged_page_is_counted_and_named(papers, capsys, monkeypatch) -> None:
    read = reading.wait_for

    def damaged(call, where):
        if where.endswith("a b.pdf#2"):
            call.cancel()
            raise DataError(f"{where}: a damaged page")
        return read(call, where)

    monkeypatch.setattr(reading, "wait_for", damaged)
    lines = printed(capsys, papers)
    assert lines[0] == "2 pages in the index"
    assert lines[1] == "1 pages cannot be read (a b.pdf#2); lexvl-pages/my papers/words/skipped.jsonl says why"


BY_PICTURES = {"picture": "vdr-crossmodal", "checkpoint": "demo-vdr", "device": "cpu"}


def test_terms_of_pictures_are_a_second_field_whose_products_count_too(papers, capsys) -> None:
    lines = printed(capsys, papers, "a red boat", **BY_PICTURES, hits=1)
    assert lines[2] == '"a red boat"' and "text:boat" in lines[3] and "image:" in lines[3]
    index = Path("lexvl-pages/my papers/index")
    with Searcher(index) as searcher:
        hit = searcher.search("a red boat")[0]
        [explained] = searcher.explain("a red boat", hits=1)
    assert {term.field for term in explained.terms} == {"text", "image"}
    assert sum(term.product for term in explained.terms) == explained.score == hit.score


def test_the_search_page_frames_words_and_maps_terms(papers, capsys) -> None:
    pytest.importorskip("fastapi", reason="the extra is not installed: pip install 'lexvl-anserini[serve]'")
    from lexvl_plugins.serve.answering import Service
    from lexvl_plugins.serve.indexes import Shelf, name_indexes
    from lexvl_plugins.serve.messages import MapQuestion, ProductsQuestion, Question

    printed(capsys, papers, **BY_PICTURES)
    shelf = Shelf(name_indexes([Path("lexvl-pages/my papers/index")], [], "cpu", None))
    try:
        service, page = Service(shelf), "sub/c.pdf#1"
        assert service.describe().indexes[0].maps
        question = Question(index="my papers", text="a boat")
        [products] = service.explain(ProductsQuestion(question=question, doc_ids=[page]))
        of_image = next(product.term for product in products.products if product.field == "image")
        word, term, whole = (
            service.map_terms(MapQuestion(question=question, doc_id=page, term=term))
            for term in ("text:boat", of_image, None)
        )
        assert (word.grid, word.region) == ([[1.0]], [0, 0, 1, 1])
        [(left, top, right, bottom)] = word.boxes
        assert left < right < 0.4 and top < bottom < 0.1, "the first word of the first line"
        assert term.boxes == [] and len(term.grid) > 1
        assert whole.boxes == word.boxes and whole.grid != word.grid
    finally:
        shelf.close()


def test_nothing_fits_but_the_nearest_page_is_shown(papers, capsys) -> None:
    lines = printed(capsys, papers, "payment", "xqzzyv", min_score="99999999")
    assert lines[2] == '"payment"  nothing fits; nearest:' and "#1" in lines[3]
    assert "  nothing here has a term of this query" in lines


def test_bad_input_is_one_line(papers, capsys) -> None:
    with pytest.raises(UsageError, match="a query is empty"):
        command(folder=papers, queries=[" "])
    with pytest.raises(UsageError, match="among the pages; name a folder outside"):
        command(folder=papers, output=papers / "answers")
    with pytest.raises(UsageError, match="--checkpoint is of --picture"):
        command(folder=papers, checkpoint="demo-vdr")
    (papers / "none").mkdir()
    with pytest.raises(DataError, match="no file with pages in it"):
        command(folder=papers / "none")


def test_words_match_by_their_stems_and_across_line_ends() -> None:
    words = [Word(text, WHOLE) for text in ("The", "pay\u00ad", "ments,", "and", "days", "Days")]
    stems = {"The": [], "payments,": ["payment"], "and": [], "days": ["dai"], "Days": ["dai"]}
    assert match_words(words, frozenset({"payment", "dai"}), stems.__getitem__) == [(1, 2), (4,), (5,)]
    assert match_words(words, frozenset(), stems.__getitem__) == []


def test_a_snippet_has_the_words_around_the_first_match() -> None:
    words = [Word(str(number), WHOLE) for number in range(20)]
    assert cut_snippet(words, [(5, 6), (9,)]) == "… 3 4 5 6 7 8 9 10 11 12 …"
    assert cut_snippet(words, []) == "0 1 2 3 4 5 6 7 …" and cut_snippet(words[:2], [(0,)]) == "0 1"


def test_frames_are_around_their_words() -> None:
    picture = draw_frames(Image.new("RGB", (100, 200), "white"), [Box(0.2, 0.1, 0.6, 0.2)])
    # 2 pixels wide, outside the box: 18 and 19, 60 and 61 across; 18 and 19, 40 and 41 down.
    assert picture.getpixel((18, 30)) == picture.getpixel((40, 41)) == INK[:3]
    assert picture.getpixel((0, 100)) == EDGE[:3] and picture.getpixel((80, 150)) == (255, 255, 255)
    assert picture.getpixel((30, 30)) not in ((255, 255, 255), INK[:3])
