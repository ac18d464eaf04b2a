"""Analysis of texts as the engine bm25 does it: Anserini's analysers, which split a text into words and stem them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from lexvl_anserini.encoders.families.bm25 import ENGLISH, BM25Settings
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import java_calls, java_class, java_errors


@java_calls()
def analyzer_of(settings: BM25Settings) -> Any:
    """The Java analyser of some settings."""
    if settings.language != ENGLISH:
        return java_class("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(settings.language)
    english = java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
    return english.fromArguments(settings.stemmer, settings.keep_stopwords, None)


def word_analysis(settings: BM25Settings) -> Callable[[str], list[str]]:
    """A function that returns the words of a text, in their order and as often as they occur."""
    jvm.start()
    analyzer = analyzer_of(settings)
    with java_calls():
        analyse = java_class("io.anserini.analysis.AnalyzerUtils").analyze
        # One call for all words of a text.
        as_json = java_class("com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString

    def words(text: str) -> list[str]:
        with java_errors("Anserini could not analyse a text"), java_calls():
            split: list[str] = orjson.loads(as_json(analyse(analyzer, text)))
        return split

    return words
