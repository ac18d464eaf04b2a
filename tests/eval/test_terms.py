"""Terms of corpora, documents and images: means by hand, what is drawn and exported, and the command."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from colour_towers import painted
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from shard_folders import jsonl, write_dense_shards, write_shards
from typer.testing import CliRunner

import eval.analyses.terms
from eval.analyses.classes.classification import WordSpace
from eval.analyses.terms import (
    DocumentTerm,
    TermStatistic,
    choose_documents,
    find_nearest_words,
    list_document_terms,
    measure_terms,
    open_shards,
    read_captions,
    read_document_terms,
)
from eval.measures.flops import compute_flops, count_sparsity, count_terms
from eval.options import ImageEncoderOptions
from eval.report.term_sheets import (
    PANEL,
    JudgedTerm,
    JudgedWord,
    PreferenceQuestion,
    draw_outline,
    list_judged_terms,
    list_judged_words,
    place_words,
)
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import DataError, UsageError
from tests.eval.test_classify import model

# Of length 5, 1 and 0.
VECTORS = [("a", {"dog": 30, "sand": 40}), ("b", {"dog": 7}), ("c", {})]

invoke = partial(CliRunner().invoke, make_app(eval.analyses.terms.command), catch_exceptions=False)


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path / "toy", VECTORS[:2], VECTORS[2:], terms=["cat", "dog", "sand"])
    return tmp_path / "toy"


def test_means_and_maxima_by_hand(shards):
    found = measure_terms(open_shards(shards), "toy")
    dog = TermStatistic("toy", 1, "dog", 2, pytest.approx(1.6 / 3), 1.0)
    sand = TermStatistic("toy", 2, "sand", 1, pytest.approx(0.8 / 3), pytest.approx(0.8))
    assert found.first == [dog, sand]
    assert (found.documents, found.used, found.share, found.active) == (3, 2, 1.0, {0: 1, 1: 1, 2: 1})


def test_the_first_terms_have_a_share_of_all_weight(tmp_path):
    # 101 terms of one weight: the alphabetically last is not among the first 100.
    terms = [f"t{number:03d}" for number in range(101)]
    write_shards(tmp_path / "toy", [("a", dict.fromkeys(terms, 9))])
    found = measure_terms(open_shards(tmp_path / "toy"), "toy")
    assert found.share == pytest.approx(100 / 101) and found.used == 101
    assert [one.term for one in found.first] == terms[:100]


def test_terms_of_documents_in_the_order_of_weights(shards):
    weight = pytest.approx(3 / 34**0.5)
    terms = list_document_terms("x", {"b": 3, "c": 4, "a": 3})[1:]
    assert terms == [DocumentTerm("x", 2, "a", weight), DocumentTerm("x", 3, "b", weight)]
    found = read_document_terms(open_shards(shards), ["b", "a", "c", "b"])
    assert [one[:3] for one in found] == [("b", 1, "dog"), ("a", 1, "sand"), ("a", 2, "dog")]
    with pytest.raises(DataError, match="toy: no document 'd' among 3"):
        read_document_terms(open_shards(shards), ["a", "d"])


def test_documents_to_judge_are_evenly_spaced(tmp_path):
    vector = {f"t{number}": 9 - number for number in range(7)}
    write_shards(tmp_path / "toy", [(str(number), vector) for number in range(9)])
    found = list_judged_terms(choose_documents(open_shards(tmp_path / "toy"), 3, 5))
    assert list(dict.fromkeys(one.document for one in found)) == ["0", "4", "8"]
    assert [one.term for one in found[:5]] == ["t0", "t1", "t2", "t3", "t4"]
    assert found[0] == JudgedTerm("0", 1, "t0", pytest.approx(9 / sum(w * w for w in vector.values()) ** 0.5), "")
    assert len([*choose_documents(open_shards(tmp_path / "toy"), 50, 5)]) == 9


def test_shards_without_terms_are_refused(tmp_path):
    write_shards(tmp_path / "empty", [("a", {})], terms=["dog"])
    with pytest.raises(DataError, match="empty: no document has a term"):
        measure_terms(open_shards(tmp_path / "empty"), "toy")
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 0.0])])
    with pytest.raises(UsageError, match="dense is dense; only vectors of impacts have terms"):
        open_shards(tmp_path / "dense")
    with pytest.raises(UsageError, match="dense is dense; expected lexical vectors"):
        invoke(["--sparsity", "--shards", str(tmp_path / "dense")])


def test_the_command_shows_corpora(shards, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    write_shards(tmp_path / "other/toy", [("a", {"cat": 1})], terms=["cat"])
    with caplog.at_level("INFO"):
        done = invoke(["--shards", str(shards), "--plot", str(tmp_path / "terms.png")])
    head, dog, sand = (line.split() for line in done.stdout.splitlines())
    assert " ".join(head) == "shards rank term documents % mean maximum"
    assert dog == ["toy", "1", "dog", "66.7", "0.5333", "1.0000"] and sand[2:] == ["sand", "33.3", "0.2667", "0.8000"]
    assert "toy: 3 documents of 1.0 terms on average; of 2 terms the first 2 have 100.0 % of all weight" in caplog.text
    assert Image.open(tmp_path / "terms.png").size[0] > 500

    both = ["--shards", str(shards), "--shards", str(tmp_path / "other/toy")]
    found = json.loads(invoke([*both, "--plot", str(tmp_path / "both.png"), "--format", "json"]).stdout)
    assert [one["shards"] for one in found] == [str(shards), str(tmp_path / "other/toy")]
    assert found[0]["active"] == {"0": 1, "1": 1, "2": 1}
    assert Image.open(tmp_path / "both.png").size[0] > Image.open(tmp_path / "terms.png").size[0]
    for wrong in (["--doc-id", "a"], ["--export", str(tmp_path / "x.csv")]):
        with pytest.raises(UsageError, match="read one folder of shards, not 2"):
            invoke([*both, *wrong])


def test_the_command_shows_documents_and_exports_terms(shards, tmp_path):
    done = invoke(["--shards", str(shards), "--doc-id", "a"])
    assert [" ".join(line.split()) for line in done.stdout.splitlines()[1:]] == ["a 1 sand 0.8000", "a 2 dog 0.6000"]
    invoke(["--shards", str(shards), "--export", str(tmp_path / "terms.csv")])
    with open(tmp_path / "terms.csv", newline="") as rows:
        first, *others = csv.DictReader(rows)
    assert first == {"document": "a", "rank": "1", "term": "sand", "weight": "0.8", "understandable": ""}
    assert len(others) == 2


def test_the_command_encodes_images(tmp_path, monkeypatch):
    image = painted(8, 8, red=(0, 0, 8, 8), blue=(0, 0, 8, 2))
    image.save(tmp_path / "a.png")
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: model())
    found = json.loads(invoke(["--image", str(tmp_path / "a.png"), "--format", "json"]).stdout)
    assert [one["term"] for one in found] == ["red", "blue"]
    assert np.hypot(*(one["weight"] for one in found)) == pytest.approx(1)
    plot = "--plot b.png"
    for wrong in ("", f"--image a.png {plot}", "--image a.png --shards b", f"--shards b --doc-id a {plot}"):
        with pytest.raises(UsageError, match="give --shards .with --plot and --export, or with --doc-id., or --image"):
            invoke(wrong.split())


def test_words_of_a_model_beside_those_of_a_caption():
    terms = [DocumentTerm("a", 1, "sand", 0.8), DocumentTerm("a", 2, "dog", 0.6)]
    words, [question] = list_judged_words([("a", terms)], {"a": ["dog", "sand", "brown", "dog", "blue", "sea", "sun"]})
    sides = {one.set: one.side for one in words}
    assert sides.keys() == {"A", "B"} and {*sides.values()} == {"model", "caption"}
    by_side = {side: [one[3:5] for one in words if one.side == side] for side in ("model", "caption")}
    assert by_side["model"] == [(1, "sand"), (2, "dog")]
    first_five = [*enumerate(("dog", "sand", "brown", "blue", "sea"), 1)]
    assert by_side["caption"] == first_five, "each once"
    assert {question.a, question.b} == {"sand, dog", "dog, sand, brown, blue, sea"} and question[3:] == ("", "", "")
    assert words[0].set == "A" and question.a.startswith(words[0].term)
    sides = [list_judged_words([(str(n), terms)], {str(n): ["boat"]})[1][0].a for n in range(40)]
    assert 10 < sides.count("boat") < 30, "which side is first is drawn"
    for documents, captions, message in (
        ([("a", terms)], {"b": ["dog"]}, "no caption for document 'a'; the list has 1"),
        ([("a", terms)], {"a": []}, "caption of document 'a' has no word but function words"),
        ([("a", [])], {"a": ["dog"]}, "document 'a' has no term"),
    ):
        with pytest.raises(DataError, match=message):
            list_judged_words(documents, captions)


def test_captions_are_a_list_of_one_each(tmp_path):
    (tmp_path / "c.tsv").write_text("document\tcaption\na\ta dog\nb\tsand, sea\n")
    assert read_captions(tmp_path / "c.tsv") == {"a": ["dog"], "b": ["sand", "sea"]}
    (tmp_path / "c.tsv").write_text("a\ta dog\na\ta cat\n")
    with pytest.raises(DataError, match="c.tsv line 2: a second caption for document 'a'"):
        read_captions(tmp_path / "c.tsv")
    with pytest.raises(UsageError, match="c.txt: expected a list, .csv or .tsv, with columns document, caption"):
        read_captions(tmp_path / "c.txt")


def test_the_command_exports_both_sides(shards, tmp_path):
    (tmp_path / "c.csv").write_text("a,a dog on sand\nb,a cat\nc,the sea\n")
    line = ["--shards", str(shards), "--export", str(tmp_path / "labels.csv"), "--captions", str(tmp_path / "c.csv")]
    invoke([*line, "--documents", "2"], catch_exceptions=True)
    assert not (tmp_path / "labels.csv").exists(), "document c has no term: nothing is written"
    done = invoke([*line, "--documents", "1"])
    assert done.exit_code == 0
    with open(tmp_path / "labels.csv", newline="") as rows:
        words = [*csv.DictReader(rows)]
    with open(tmp_path / "labels.preferences.csv", newline="") as rows:
        [question] = csv.DictReader(rows)
    assert words[0].keys() == set(JudgedWord._fields) and question.keys() == set(PreferenceQuestion._fields)
    assert [word["weight"] for word in words if word["side"] == "caption"] == ["", ""]
    with pytest.raises(UsageError, match="--captions names captions for --export"):
        invoke([*line[:2], *line[4:]])


def test_words_of_a_cloud_do_not_overlap():
    weights = {f"word{n}": 1 / (1 + n) for n in range(30)} | {"empty": 0.0, "$a_b$": 0.9}
    words = place_words(weights)
    assert [word.word for word in words[:2]] == ["word0", "$a_b$"] and "empty" not in {word.word for word in words}
    assert words[1].size == pytest.approx(0.9 * words[0].size)
    boxes = []
    for word in words:
        box = draw_outline(word.word, word.size).get_extents().translated(word.x, word.y)
        assert box.x0 >= 0 and box.x1 <= PANEL[0] and box.y0 >= 0 and box.y1 <= PANEL[1]
        assert not any(box.overlaps(other) for other in boxes), word
        boxes.append(box)
    assert len(words) == 11 and place_words(weights) == words, "word10 would be too small to read"
    assert place_words({}) == [] and [word.word for word in place_words({"one": 3.0})] == ["one"]
    [long] = place_words({"m" * 20: 1.0, "dog": 0.001})
    assert draw_outline(long.word, long.size).get_extents().width <= PANEL[0], "a word that is too wide is made smaller"


def test_the_command_draws_clouds(shards, tmp_path):
    for line in (["--shards", str(shards)], ["--shards", str(shards), "--doc-id", "a", "--doc-id", "b"]):
        for suffix in ("png", "svg"):
            invoke([*line, "--cloud", str(tmp_path / f"{len(line)}.{suffix}")])
    assert Image.open(tmp_path / "6.png").size[0] == 2 * Image.open(tmp_path / "2.png").size[0]
    first = (tmp_path / "2.svg").read_bytes()
    invoke(["--shards", str(shards), "--cloud", str(tmp_path / "2.svg")])
    assert first.startswith(b"<?xml") and (tmp_path / "2.svg").read_bytes() == first
    with pytest.raises(UsageError, match="--cloud c.gif: draws PNG and SVG; give the file the suffix .png or .svg"):
        invoke(["--shards", str(tmp_path / "nowhere"), "--cloud", "c.gif"])
    with pytest.raises(UsageError, match="terms.xyz: draws PNG only; give the file the suffix .png"):
        invoke(["--shards", str(tmp_path / "nowhere"), "--plot", "terms.xyz"])


def test_nearest_words_of_a_dense_encoder():
    """The words of each image by their cosines; equal ones in alphabetical order."""
    space = WordSpace(lambda images: np.array([[0.1, 0.5, 0.5], [0.9, -0.2, 0.0]]), lambda texts: [], ("c", "b", "a"))
    assert find_nearest_words(space, ["x", "y"]) == [
        *(DocumentTerm("x", 1, "a", 0.5), DocumentTerm("x", 2, "b", 0.5), DocumentTerm("x", 3, "c", 0.1)),
        *(DocumentTerm("y", 1, "c", 0.9), DocumentTerm("y", 2, "a", 0.0), DocumentTerm("y", 3, "b", -0.2)),
    ]


DOCUMENTS = [("d1", {"a": 9, "b": 1}), ("d2", {"a": 3, "b": 9}), ("d3", {"b": 5}), ("d4", {})]
QUERIES = [{"a": 4, "b": 3}, {"c": 2}]

ANY_VECTORS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)), min_size=1, max_size=6)


def test_sparsity_by_hand(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    row = count_sparsity(tmp_path / "shards", QUERIES)
    assert (row.documents, row.terms_per_document, row.most_document_terms, row.document_dimensions) == (4, 5 / 4, 2, 2)
    assert (row.queries, row.terms_per_query, row.most_query_terms, row.query_dimensions) == (2, 3 / 2, 2, 3)
    # a: 1/2 of the queries, 2/4 of the documents; b: 1/2 and 3/4; c: no document.
    assert row.flops == 1 / 2 * 2 / 4 + 1 / 2 * 3 / 4
    with pytest.raises(DataError, match="no vector"):
        count_sparsity(tmp_path / "shards", [])


@given(ANY_VECTORS, ANY_VECTORS)
def test_flops_are_the_mean_of_shared_terms_over_all_pairs(queries, documents):
    shared = [len(query.keys() & document.keys()) for query in queries for document in documents]
    flops = compute_flops(count_terms(queries, "q"), count_terms(documents, "d"))
    assert flops == pytest.approx(sum(shared) / len(shared))


def test_the_command_counts_sparsity(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    rows = [{"id": f"q{number}", "vector": vector} for number, vector in enumerate(QUERIES)]
    # The toy's vocabulary holds the terms of its documents.
    rows[1]["vector"] = {"b": 2}
    (tmp_path / "q.jsonl").write_bytes(jsonl(rows))
    arguments = ["--sparsity", "--shards", str(tmp_path / "shards"), "--topics", str(tmp_path / "q.jsonl")]
    [row] = json.loads(invoke([*arguments, "--format", "json"]).stdout)
    assert row["flops"] == 1 / 2 * 2 / 4 + 1 * 3 / 4
    shown = invoke(arguments).stdout.splitlines()
    assert shown[1].split()[1:] == ["4", "1.25", "2", "2", "2", "1.50", "2", "2", "1.00"]
    write_shards(tmp_path / "twice", DOCUMENTS)
    assert len(invoke([*arguments, "--shards", str(tmp_path / "twice")]).stdout.splitlines()) == 3
