"""The list of function words: what it contains, what it leaves to be named, and its form."""

from __future__ import annotations

from collections import Counter

from lexvl_anserini.data.function_words import FILE, function_words


def test_words_that_connect_are_in_the_list():
    assert {"a", "the", "of", "with", "and", "is", "are", "his", "their", "not", "some", "s"} <= function_words()


def test_what_an_image_shows_is_not_in_the_list():
    shown = "dog red black two three one outside inside man running front top water many-coloured"
    assert not function_words() & set(shown.split())


def test_each_word_is_one_lower_case_word_and_has_one_place():
    words = [word for line in FILE.read_text().splitlines() if not line.startswith("#") for word in line.split()]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert all(word.isascii() and word.isalpha() and word == word.lower() for word in words)
    assert len(words) == len(function_words()) > 200
