"""The word error rate against its definition, and the two corpora that are compared."""

from __future__ import annotations

import json

import pytest
from beir_folders import write_beir
from hypothesis import given
from hypothesis import strategies as st

from eval.analyses.pages.word_error import Edits, command, edits_of
from tests.invoking import invoked

texts = st.lists(st.sampled_from("abc"), max_size=6)


def fewest(read, true):
    """Fewest edits, by the recursion of Levenshtein's definition."""
    if not read or not true:
        return len(read) + len(true)
    return min(
        fewest(read[1:], true[1:]) + (read[0] != true[0]), fewest(read[1:], true) + 1, fewest(read, true[1:]) + 1
    )


@given(texts, texts)
def test_the_edits_are_fewest_and_lead_there(read, true):
    edits = edits_of(read, true)
    assert edits.substituted + edits.missing + edits.added == fewest(read, true)
    assert len(read) - edits.added == len(true) - edits.missing
    assert edits.words == len(true) and edits.read >= len(true) - edits.missing - edits.substituted


@pytest.mark.parametrize(
    ("read", "true", "expected"),
    [
        ("", "", Edits()),
        ("", "two words", Edits(2, missing=2)),
        ("two words", "", Edits(added=2)),
        ("b a", "a b", Edits(2, 2, 0, 0, 2)),
        ("a b c d", "a c d", Edits(3, 0, 0, 1, 3)),
    ],
)
def test_edits(read, true, expected):
    assert edits_of(read.split(), true.split()) == expected


def test_the_command(tmp_path):
    true = write_beir(tmp_path / "true", {"a": "The red cat sat", "b": "a dog"}, {}, [])
    read = write_beir(tmp_path / "read", {"a": "the rod cat sat", "b": "a dog ran away"}, {}, [])
    arguments = ("--true", f"beir:{true}", "--worst", 1, "--format", "json", "--read")
    every, worst = json.loads(invoked(command, *arguments, f"beir:{read}"))
    assert (every["pages"], every["words"], every["error"]) == (2, 6, 0.5) and every["any_order"] == pytest.approx(
        5 / 6
    )
    assert (worst["page"], worst["error"], worst["added"]) == ("b", 1.0, 2)
    fewer = write_beir(tmp_path / "fewer", {"a": "x"}, {}, [])
    with pytest.raises(Exception, match=r"fewer: no page 'b' of beir:.*true, nor 0 others"):
        invoked(command, *arguments, f"beir:{fewer}")
    more = write_beir(tmp_path / "more", {"c": "x"}, {}, [])
    with pytest.raises(Exception, match=r"true: no document 'c', which beir:.*more has"):
        invoked(command, *arguments, f"beir:{more}")
