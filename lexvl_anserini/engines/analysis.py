"""Analysis of texts as the engine bm25 does it: Anserini's analysers, which split a text into words and stem them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from lexvl_anserini.encoders.families.bm25 import ENGLISH, BM25Settings
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import call_java, get_java_class, raise_java_errors


@call_java()
def make_analyzer(settings: BM25Settings) -> Any:
    """The Java analyser of some settings."""
    if settings.language != ENGLISH:
        return get_java_class("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(settings.language)
    english = get_java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
    return english.fromArguments(settings.stemmer, settings.keep_stopwords, None)


def load_word_analysis(settings: BM25Settings) -> Callable[[str], list[str]]:
    """A function that returns the words of a text, in their order and as often as they occur."""
    jvm.start()
    analyzer = make_analyzer(settings)
    with call_java():
        analyse = get_java_class("io.anserini.analysis.AnalyzerUtils").analyze
        # One call for all words of a text.
        as_json = get_java_class("com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString

    def words(text: str) -> list[str]:
        with raise_java_errors("Anserini could not analyse a text"), call_java():
            split: list[str] = orjson.loads(as_json(analyse(analyzer, text)))
        return split

    return words
