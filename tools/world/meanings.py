"""What the words of the demo's captions mean: the concepts of a scene that a word can name, by the world's own tables.

The same rules judge a term of a vector for objects, colours, places and everything else:

- Lucene's English stop words are no concepts, nor are word pieces (`##s`), single letters, digits and punctuation.
- The last word of a wording of the tables names its concept, stop words aside: `yacht` and `ship` a boat, `ocean` (from
  "on the ocean") the sea, `peaks` ("below rocky peaks") the mountains. A word that only occurs before others belongs to
  their concept and does not name it: `finned` belongs to the fish, but is no noun for it.
- A word of several concepts (`seat`: bench, chair; `vehicle`: car, bus, truck) names none of them.
- Words that share a concept take one place, which then means what they share: `seat` and `bench` are a bench.
- Every other word (`photo`, or one that the tables do not contain) is a concept of its own, and never correct.

A place is correct if a word in it names a concept of the scene, and nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from world.catalogue import Forms, world
from world.scenes import Scene

# The stop words of Lucene's EnglishAnalyzer.
_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


class Concept(NamedTuple):
    """Something that a word names: `sort` is one of SORTS, or "word" for a word that the tables do not contain."""

    sort: str
    value: str


class Meaning(NamedTuple):
    """The possible concepts of a word, or of several that share a place; `names`: one of them names the concept."""

    senses: frozenset[Concept]
    names: bool


SORTS = ("object", "colour", "place", "weather", "time", "size", "count", "pose", "relation")


def meaning_of(term: str) -> Meaning | None:
    """The meaning of a term of a vector or of a word of a caption; None if it is no concept."""
    word = term.lower()
    if len(word) < 2 or not word.isalpha() or word in STOP_WORDS:
        return None
    return lexicon().get(word) or Meaning(frozenset({Concept("word", word)}), names=True)


def meanings(terms: Iterable[str]) -> Iterator[Meaning]:
    """The meanings of those terms that are concepts."""
    return (meaning for term in terms if (meaning := meaning_of(term)))


def distinct(read: Iterable[Meaning], places: int) -> list[Meaning]:
    """The first different concepts; reading stops before one more than `places` would begin."""
    found: list[Meaning] = []
    for one in read:
        for place, earlier in enumerate(found):
            if shared := earlier.senses & one.senses:
                found[place] = Meaning(shared, earlier.names or one.names)
                break
        else:
            if len(found) == places:
                break
            found.append(one)
    return found


def concepts_in(scene: Scene) -> frozenset[Concept]:
    """All concepts that are true of a scene."""
    things = [thing for thing in (scene.subject, scene.landmark, scene.backdrop) if thing]
    named = {Concept("place", scene.place), Concept("weather", scene.weather), Concept("time", scene.time)}
    named |= {Concept("object", thing.kind) for thing in things}
    named |= {Concept("colour", thing.colour) for thing in things if thing.colour}
    named |= {Concept("size", thing.size) for thing in things} | {Concept("count", str(t.count)) for t in things}
    named |= {Concept("pose", scene.pose)} if scene.pose else set()
    return frozenset(named | ({Concept("relation", scene.relation)} if scene.relation else set()))


def named(found: Iterable[Meaning], sort: str) -> frozenset[Concept]:
    """The concepts of a sort that the found meanings name."""
    concepts = frozenset(concept for one in found if one.names for concept in one.senses)
    return frozenset(concept for concept in concepts if concept.sort == sort)


def words_of(text: str) -> list[str]:
    """The words of a caption or of a wording in lower case; a hyphen separates words."""
    return re.findall(r"[a-z]+", text.lower())


@cache
def lexicon() -> Mapping[str, Meaning]:
    """Word -> meaning, for all words of the tables."""
    last, before = defaultdict[str, set[Concept]](set), defaultdict[str, set[Concept]](set)
    for concept, wording in wordings():
        *modifiers, head = [word for word in words_of(wording) if word not in STOP_WORDS] or [""]
        last[head].add(concept)
        for word in modifiers:
            before[word].add(concept)
    heads = {word: Meaning(frozenset(found), names=len(found) == 1) for word, found in last.items()}
    return {word: Meaning(frozenset(found), names=False) for word, found in before.items()} | heads


def wordings() -> Iterator[tuple[Concept, str]]:
    """All wordings of the world's tables, in all their forms, each with its concept."""
    for concept, forms in _entries():
        for one in forms:
            for wording in one.split("/"):
                yield concept, wording


def _entries() -> Iterator[tuple[Concept, Forms]]:
    tables = world()
    words, skies = tables.words, tables.skies
    for kind, thing in tables.kinds.items():
        nouns = (thing.nouns, *thing.nouns_by_size.values(), *thing.nouns_by_place.values())
        yield from ((Concept("object", kind), forms) for forms in nouns)
        yield from ((Concept("pose", pose), forms) for pose, forms in thing.verbs.items())
    yield from ((Concept("pose", pose), forms) for pose, forms in words.verbs.items())
    yield from ((Concept("colour", colour), hue.words) for colour, hue in tables.colours.hues.items())
    for name, place in tables.places.items():
        yield from ((Concept("place", name), forms) for forms in (place.phrases, place.names))
    for name, weather in skies.weathers.items():
        phrases = (*weather.phrases.values(), *weather.adjectives.values(), weather.window_phrases)
        yield from ((Concept("weather", name), forms) for forms in phrases)
    for name, time in skies.times.items():
        yield from ((Concept("time", name), forms) for forms in (time.phrases, time.nouns, time.on_nouns))
    for name, size in words.sizes.items():
        adjectives = (size.words, size.words_of_tall_things, size.words_of_people)
        yield from ((Concept("size", name), forms) for forms in adjectives)
    yield from ((Concept("count", str(number)), count.words) for number, count in words.counts.items())
    for name, relation in words.relations.items():
        yield from ((Concept("relation", name), forms) for forms in (relation.prepositions, *relation.verbs.values()))
