"""Cards: every encoder has one, options are those of the loader, and reading them loads no model library."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Literal

import pytest

from lexvl_anserini.encoders.cards import (
    CARDS,
    UNKNOWN,
    argument_meanings,
    card_of,
    describe,
    equation_of,
    listing,
    options_of,
    type_name,
)
from lexvl_anserini.errors import UnknownName
from lexvl_anserini.registry import ENCODERS, resolve


def test_every_encoder_has_a_card_and_every_card_an_encoder():
    assert set(CARDS) == set(ENCODERS) and [row["name"] for row in listing()] == list(ENCODERS)


@pytest.mark.parametrize("name", ENCODERS)
def test_cards(name):
    card = card_of(name)
    assert card.paper and card.paper != UNKNOWN and card.licence
    assert card.modalities and set(card.modalities) <= {"text", "image"}
    assert len(set(card.checkpoints)) == len(card.checkpoints)
    assert equation_of(name) and "\n" not in equation_of(name)


@pytest.mark.parametrize("name", ENCODERS)
def test_options_are_those_of_the_loader_and_explained(name):
    parameters = [p for p in inspect.signature(resolve("encoder", name, ENCODERS)).parameters if p != "source"]
    options = options_of(name)
    assert [option.name for option in options] == parameters
    assert all(re.fullmatch(r"\w[\w|.-]*", option.type) for option in options), options
    assert all(option.meaning for option in options), [option.name for option in options if not option.meaning]


def test_directions_and_modalities_agree():
    for name in ENCODERS:
        if any(option.name == "direction" for option in options_of(name)):
            assert card_of(name).modalities == ("text", "image"), name


def test_types_as_users_read_them():
    assert type_name(int) == type_name(int | None) == "int"
    assert type_name(Literal["a", "b"]) == type_name(Literal["a", "b"] | None) == "a|b"
    assert type_name(int | str) == "int|str"


def test_meanings_of_arguments():
    def documented(a, b):
        """First line.

        Args:
            a: one line.
            b: several
                lines: here.

        Raises:
            c: no argument.
        """

    assert argument_meanings(documented) == {"a": "one line.", "b": "several lines: here."}
    assert argument_meanings(lambda a: a) == {}


def test_unknown_encoders_are_suggested():
    for function in (card_of, describe):
        with pytest.raises(UnknownName, match="did you mean 'splade'"):
            function("spalde")


def test_listing_loads_no_model_library():
    code = "import sys; from lexvl_anserini.encoders.cards import listing; listing(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
