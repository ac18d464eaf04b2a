"""Pages in Parquet tables as the hub has them: every published form, languages, damaged tables; runs on them."""

import io
import json
from math import log2

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from eval.measures.averages import VIDORE_2
from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.archives import find_file
from lexvl_anserini.data.pictures.images import open_image, read_images
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Qrel
from lexvl_plugins.pages.vidore import command
from lexvl_plugins.papers.command import command as reproduce
from tests.invoking import invoked
from tests.plugins.pages.page_tables import page, write_tables
from tests.plugins.pages.v_splade_folders import write_export

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(shade):
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def write(path, rows=3, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"image": PICTURE}
    table = pa.table({name.replace("__", "-"): pa.array(values, kinds.get(name)) for name, values in columns.items()})
    pq.write_table(table, path, row_group_size=rows)


@pytest.fixture
def folder(tmp_path):
    """Five pages in two tables, with queries of two languages: ViDoRe's second version."""
    where = tmp_path / "esg"
    write(
        where / "corpus/test-00000-of-00002.parquet", 2, corpus__id=[0, 1, 2], image=[picture(n) for n in (10, 20, 30)]
    )
    write(where / "corpus/test-00001-of-00002.PARQUET", corpus__id=[3, 4], image=[picture(n) for n in (40, 50)])
    texts = {"query": ["how many?", "combien?", "why?"], "language": ["english", "french", "english"]}
    write(where / "queries/test-00000-of-00001.parquet", query__id=[0, 1, 2], **texts)
    write(
        where / "qrels/test-00000-of-00001.parquet", query__id=[0, 1, 2, 2], corpus__id=[3, 3, 1, 4], score=[1, 1, 2, 1]
    )
    return where


def test_pages_queries_and_judgements(folder):
    data = load_dataset(f"vidore:{folder}")
    documents = list(data.documents())
    assert [document.doc_id for document in documents] == ["0", "1", "2", "3", "4"]
    assert [open_image(document.image).getpixel((0, 0))[0] for document in documents] == [10, 20, 30, 40, 50]
    backwards = [read.value.getpixel((0, 0))[0] for read in read_images(d.image for d in documents[::-1])]
    assert backwards == [50, 40, 30, 20, 10]
    assert [(t.query_id, t.text) for t in data.topics()] == [("0", "how many?"), ("1", "combien?"), ("2", "why?")]
    assert list(data.qrels())[2:] == [Qrel("2", "1", 2), Qrel("2", "4", 1)]
    assert (data.direction, data.split, data.remove_query) == ("text-to-image", "test", False)
    assert check_corpus(data.documents, "esg").images == 5
    assert find_file(documents[4].image) == folder / "corpus/test-00001-of-00002.PARQUET"
    with FileDigests(folder.parent / "digests") as digests:
        first, second, other = (digests.of(documents[n].image) for n in (0, 1, 4))
    assert first == second != other


def test_a_language(folder):
    data = load_dataset(f"vidore:{folder},english")
    assert [topic.query_id for topic in data.topics()] == ["0", "2"]
    assert [qrel.query_id for qrel in data.qrels()] == ["0", "2", "2"]
    with pytest.raises(DataError, match="no query of language 'welsh'; languages there: english, french"):
        list(load_dataset(f"vidore:{folder},welsh").topics())


def test_the_third_version(tmp_path, caplog):
    """Names with underscores, texts of pages, and tables of other kinds."""
    page = {"image": [picture(9)], "doc_id": ["report"], "markdown": ["Some words"], "page_number_in_doc": [4]}
    write(tmp_path / "corpus/test-00000-of-00001.parquet", corpus_id=[7], **page)
    write(tmp_path / "queries/test-00000-of-00001.parquet", query_id=[1], query=["q"], language=["english"])
    write(tmp_path / "qrels/test-00000-of-00001.parquet", query_id=[1], corpus_id=[7], score=[1])
    write(tmp_path / "documents_metadata/test-00000-of-00001.parquet", doc_id=["report"], licence=["?"])
    caplog.set_level("INFO", "lexvl_anserini")
    for direction in ("text-to-image", "text-to-text"):
        data = load_dataset(f"vidore:{tmp_path}", direction=direction)
        [document] = data.documents()
        assert (document.doc_id, document.text) == ("7", "Some words")
        assert document.metadata == {"doc_id": "report", "page_number_in_doc": 4}
    assert "neither pages, queries nor judgements: documents_metadata/test-00000-of-00001.parquet" in caplog.text


def test_the_form_of_mteb(tmp_path):
    for language in ("english", "french"):
        split = "test-00000-of-00001.parquet"
        write(tmp_path / f"{language}-corpus" / split, id=["p1", "p2"], image=[picture(1), picture(2)], text=["a", "b"])
        write(tmp_path / f"{language}-queries" / split, id=["q"], text=[f"in {language}"])
        write(tmp_path / f"{language}-qrels" / split, query__id=["q"], corpus__id=["p2"], score=[1])
    data = load_dataset(f"vidore:{tmp_path},french")
    assert [(document.doc_id, document.text) for document in data.documents()] == [("p1", "a"), ("p2", "b")]
    assert [topic.text for topic in data.topics()] == ["in french"] and [*data.qrels()] == [Qrel("q", "p2", 1)]


def test_rows_that_are_pages_with_a_query(tmp_path):
    """The first version: a page may have several queries or none, and a query several pages."""
    pictures = {"image": [picture(n) for n in (1, 2, 1, 3)], "image_filename": ["x.png", "y.png", "x.png", "z.png"]}
    write(tmp_path / "data/test-00000-of-00001.parquet", query=["a", None, "b", "a"], **pictures)
    data = load_dataset(f"vidore:{tmp_path}")
    assert [document.doc_id for document in data.documents()] == ["x.png", "y.png", "z.png"]
    assert [(topic.query_id, topic.text) for topic in data.topics()] == [("q0", "a"), ("q1", "b")]
    assert [*data.qrels()] == [Qrel("q0", "x.png", 1), Qrel("q1", "x.png", 1), Qrel("q0", "z.png", 1)]


def test_the_data_folder(folder, tmp_path):
    (tmp_path / "data/vidore").mkdir(parents=True)
    folder.rename(tmp_path / "data/vidore/esg")
    assert len([*load_dataset("vidore/esg", data_dir=str(tmp_path / "data")).documents()]) == 5
    with pytest.raises(DataError, match=r"hf download --repo-type dataset vidore/x --local-dir .*data/vidore/x"):
        load_dataset("vidore/x", data_dir=str(tmp_path / "data"))


def test_what_is_no_collection_of_pages(folder, tmp_path):
    with pytest.raises(UsageError, match="names no pages; expected vidore:<folder>"):
        load_dataset("vidore:")
    with pytest.raises(DataError, match=r"no pages of split 'dev' \(splits there: test\)"):
        load_dataset(f"vidore:{folder}", "dev")
    with pytest.raises(DataError, match="no text of pages"):
        list(load_dataset(f"vidore:{folder}", direction="text-to-text").documents())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no pages of split 'test' \(no table of pages\)"):
        load_dataset(f"vidore:{tmp_path / 'empty'}")


def test_damaged_tables_and_rows(folder):
    pages = folder / "corpus/test-00000-of-00002.parquet"
    with pytest.raises(DataError, match=r"::3: no such row; the table has 3"):
        open_image(f"{pages}::3")
    with pytest.raises(DataError, match="no column of pictures; it has query-id, query, language"):
        open_image(f"{folder / 'queries/test-00000-of-00001.parquet'}::0")
    write(folder / "corpus/more.parquet", corpus__id=[9], image=[{"bytes": None, "path": "x"}])
    with pytest.raises(DataError, match=r"more.parquet::0: no picture in this row"):
        open_image(f"{folder / 'corpus/more.parquet'}::0")
    write(folder / "corpus/more.parquet", corpus__id=[9], image=[{"bytes": b"text", "path": "x"}])
    with pytest.raises(DataError, match="not a picture of a known format"):
        open_image(f"{folder / 'corpus/more.parquet'}::0")
    pages.write_bytes(pages.read_bytes()[:-40])
    with pytest.raises(DataError, match="no Parquet table, or a damaged one"):
        load_dataset(f"vidore:{folder}")


def test_the_mean_of_the_second_version_has_a_verdict(tmp_path, monkeypatch):
    """Over pages of one shade each, and weights that are random: the verdict says that these are not the published."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    for number, name in enumerate(VIDORE_2):
        write_tables(
            tmp_path / "data/vidore" / name,
            corpus={"corpus-id": [0, 1], "image": [page(50 * number), page(50 * number + 30)]},
            queries={"query-id": [0, 1, 2], "query": ["a b", "c", "d"], "language": ["english", "english", "french"]},
            qrels={"query-id": [0, 1, 2], "corpus-id": [1, 0, 0], "score": [1, 2, 1]},
        )
    weights = write_export(tmp_path / "weights")
    arguments = ("v-splade-readme", "--rows", "*Quality", "--checkpoint", f"naver/v-splade-quality={weights}")
    printed = invoked(reproduce, *arguments, "--output", tmp_path / "out", "--format", "json")
    [cell] = [row for row in json.loads(printed) if row["quantity"] == "text-to-image vidore-2 nDCG@5"]
    values = []
    for part in (tmp_path / "out/parts").glob("*.json"):
        content = json.loads(part.read_text())
        run = ("--run", tmp_path / "out/runs" / content["run"], "--dataset", content["request"]["corpus"])
        [own] = [r for r in json.loads(invoked(command, *run, "--format", "json")) if r["measure"] == "nDCG@5"]
        assert content["values"] == {"nDCG@5": own["value"]}
        values.append(own["value"])
    assert len(values) == 4 and cell["measured"] == pytest.approx(sum(values) / 4)
    assert cell["published"] == 0.499


def test_the_measures(tmp_path):
    """Page 1 (grade 2) is second; pages 3 and 4 have equal scores, so that 4 (grade 1), the larger id, is third."""
    write_tables(
        tmp_path,
        corpus={"corpus-id": ["1", "2", "3", "4"], "image": [b"x"] * 4},
        queries={"query-id": ["0", "9"], "query": ["a", "b"]},
        qrels={"query-id": ["0", "0", "9"], "corpus-id": ["1", "4", "2"], "score": [2, 1, 1]},
    )
    run = tmp_path / "x.trec"
    run.write_text("0 Q0 2 1 9 x\n0 Q0 1 2 8 x\n0 Q0 3 3 7 x\n0 Q0 4 4 7 x\n")
    rows = json.loads(invoked(command, "--run", run, "--dataset", f"vidore:{tmp_path}", "--format", "json"))
    values = {row["measure"]: row["value"] for row in rows}
    ideal = 2 + 1 / log2(3)
    assert values["nDCG@5"] == pytest.approx((2 / log2(3) + 1 / log2(4)) / ideal / 2) == values["nDCG@10"]
    assert values["Recall@5"] == 0.5  # the topic without a hit counts
