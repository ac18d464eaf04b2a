"""The lists of words: what they contain, what they leave to be named, and their form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lexvl_anserini.data.lines import FUNCTION_WORDS, load_function_words, read_words
from lexvl_plugins.train.words import LEFT_OUT


def test_words_that_connect_are_in_the_list():
    assert {"a", "the", "of", "with", "and", "is", "are", "his", "their", "not", "some", "s"} <= load_function_words()
    assert len(load_function_words()) > 200


def test_what_an_image_shows_is_in_no_list():
    shown = {"dog", "red", "two", "outside", "man", "running", "front", "water", "black"}
    assert not shown & (load_function_words() | read_words(LEFT_OUT))
    assert {"african", "gorilla"} <= read_words(LEFT_OUT)


@pytest.mark.parametrize("path", [FUNCTION_WORDS, LEFT_OUT], ids=lambda path: path.name)
def test_each_word_is_one_lower_case_word_and_has_one_place(path: Path):
    words = [word for line in path.read_text().splitlines() if not line.startswith("#") for word in line.split()]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert all(word.isascii() and word.isalpha() and word == word.lower() for word in words)
    assert len(words) == len(read_words(path))
