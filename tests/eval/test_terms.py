"""Terms of corpora, documents and images: means by hand, what is drawn and exported, and the command."""

from __future__ import annotations

import csv
import json
from functools import partial

import numpy as np
import pytest
from colour_towers import painted
from PIL import Image
from shard_folders import write_dense_shards, write_shards
from typer.testing import CliRunner

import eval.analyses.terms
from eval.analyses.terms import (
    DocumentTerm,
    JudgedTerm,
    TermStatistic,
    document_terms,
    stored_vectors,
    term_profile,
    terms_of_documents,
    terms_to_judge,
)
from eval.options import ImageEncoderOptions
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import DataError, UsageError
from tests.eval.test_zeroshot import model

# Of length 5, 1 and 0.
VECTORS = [("a", {"dog": 30, "sand": 40}), ("b", {"dog": 7}), ("c", {})]

invoke = partial(CliRunner().invoke, make_app(eval.analyses.terms.command), catch_exceptions=False)


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path / "toy", VECTORS[:2], VECTORS[2:], terms=["cat", "dog", "sand"])
    return tmp_path / "toy"


def test_means_and_maxima_by_hand(shards):
    found = term_profile(stored_vectors(shards), "toy")
    dog = TermStatistic("toy", 1, "dog", 2, pytest.approx(1.6 / 3), 1.0)
    sand = TermStatistic("toy", 2, "sand", 1, pytest.approx(0.8 / 3), pytest.approx(0.8))
    assert found.first == [dog, sand]
    assert (found.documents, found.used, found.share, found.active) == (3, 2, 1.0, {0: 1, 1: 1, 2: 1})
    assert found.mean_active == 1.0


def test_the_first_terms_have_a_share_of_all_weight(tmp_path):
    # 101 terms of one weight: the alphabetically last is not among the first 100.
    terms = [f"t{number:03d}" for number in range(101)]
    write_shards(tmp_path / "toy", [("a", dict.fromkeys(terms, 9))])
    found = term_profile(stored_vectors(tmp_path / "toy"), "toy")
    assert found.share == pytest.approx(100 / 101) and found.used == 101
    assert [one.term for one in found.first] == terms[:100]


def test_terms_of_documents_in_the_order_of_weights(shards):
    assert document_terms("x", {"b": 3, "c": 4, "a": 3})[1:] == [
        DocumentTerm("x", 2, "a", pytest.approx(3 / 34**0.5)),
        DocumentTerm("x", 3, "b", pytest.approx(3 / 34**0.5)),
    ]
    found = terms_of_documents(stored_vectors(shards), ["b", "a", "c", "b"])
    assert [one[:3] for one in found] == [("b", 1, "dog"), ("a", 1, "sand"), ("a", 2, "dog")]
    with pytest.raises(DataError, match="toy: no document 'd' among 3"):
        terms_of_documents(stored_vectors(shards), ["a", "d"])


def test_documents_to_judge_are_evenly_spaced(tmp_path):
    vector = {f"t{number}": 9 - number for number in range(7)}
    write_shards(tmp_path / "toy", [(str(number), vector) for number in range(9)])
    found = terms_to_judge(stored_vectors(tmp_path / "toy"), 3)
    assert list(dict.fromkeys(one.document for one in found)) == ["0", "4", "8"]
    assert [one.term for one in found[:5]] == ["t0", "t1", "t2", "t3", "t4"]
    assert found[0] == JudgedTerm("0", 1, "t0", pytest.approx(9 / sum(w * w for w in vector.values()) ** 0.5), "")
    assert len({one.document for one in terms_to_judge(stored_vectors(tmp_path / "toy"), 50)}) == 9


def test_shards_without_terms_are_refused(tmp_path):
    write_shards(tmp_path / "empty", [("a", {})], terms=["dog"])
    with pytest.raises(DataError, match="empty: no document has a term"):
        term_profile(stored_vectors(tmp_path / "empty"), "toy")
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 0.0])])
    with pytest.raises(UsageError, match="dense is dense; only vectors of impacts have terms"):
        stored_vectors(tmp_path / "dense")


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
    for given in (["--doc-id", "a"], ["--export", str(tmp_path / "x.csv")]):
        with pytest.raises(UsageError, match="read one folder of shards, not 2"):
            invoke([*both, *given])


def test_the_command_shows_documents_and_exports_terms(shards, tmp_path):
    done = invoke(["--shards", str(shards), "--doc-id", "a"])
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["a", "1", "sand", "0.8000"],
        ["a", "2", "dog", "0.6000"],
    ]
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
    for given in (
        [],
        ["--image", "a.png", "--plot", "b.png"],
        ["--image", "a.png", "--shards", "b"],
        ["--shards", "b", "--doc-id", "a", "--plot", "b.png"],
    ):
        with pytest.raises(UsageError, match="give --shards .with --plot and --export, or with --doc-id., or --image"):
            invoke(given)


def test_a_plot_is_a_png_which_is_said_before_anything_is_read(tmp_path):
    with pytest.raises(UsageError, match="terms.xyz: draws PNG only; give the file the suffix .png"):
        invoke(["--shards", str(tmp_path / "nowhere"), "--plot", "terms.xyz"])
