"""What goes in a later version works until then, warns, and is in docs/stability.md."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import lexvl_anserini
from lexvl_anserini import Encoder, Quantiser, __version__, load_encoder
from lexvl_anserini.cli import GONE
from lexvl_anserini.ground.deprecations import DEPRECATIONS

ROOT = Path(__file__).parents[2]
# Flags of all commands, and parameters of all public functions, of version 0.2.0 (commit 9b7832e8).
OLDER = json.loads((ROOT / "tests/golden/cli/of-0.2.0.json").read_text("utf-8"))
NOW = json.loads((ROOT / "tests/golden/cli/options.json").read_text("utf-8"))
# What 0.3.0 has no more, besides the commands in `GONE`; docs/stability.md says so.
GONE_FLAGS = {"efficiency": {"--corpus", "--batch-size"}}
RENAMED = {"Encoder.encode_query": {"texts": "queries"}, "Encoder.encode_document": {"texts": "documents"}}
PAGE = (ROOT / "docs/stability.md").read_text("utf-8")


@pytest.fixture(scope="module")
def model(golden: Path) -> Encoder:
    return load_encoder("bag-of-tokens", checkpoint=str(golden / "splade/ckpt_bert"), device="cpu")


USES: dict[str, Callable[[Encoder], tuple[object, object]]] = {
    "Encoder.encode_query(texts=...)": lambda model: (
        model.encode_query(texts=["a boat"]).toarray().tolist(),  # type: ignore[call-overload]
        model.encode_query(queries=["a boat"]).toarray().tolist(),  # type: ignore[union-attr]
    ),
    "Encoder.encode_document(texts=...)": lambda model: (
        model.encode_document(texts=["a boat"]).toarray().tolist(),  # type: ignore[call-overload]
        model.encode_document(documents=["a boat"]).toarray().tolist(),  # type: ignore[union-attr]
    ),
    "Quantiser.effect()": lambda model: (
        Quantiser.named("fixed", scale=2.0).effect(),
        {
            "document": {"scheme": "fixed", "bits": 8, "scale": 2.0},
            "query": {"scheme": "peak", "bits": 8, "scale": None},
        },
    ),
}


@pytest.mark.parametrize("row", DEPRECATIONS, ids=lambda row: row.name)
def test_a_deprecated_name_works_as_before_and_warns_in_one_line(row, model: Encoder) -> None:
    with pytest.warns(FutureWarning) as warned:
        older, newer = USES[row.name](model)
    assert older == newer
    assert [str(warning.message) for warning in warned] == [
        f"{row.name} goes in version {row.gone}: use {row.replacement}"
    ]
    assert warned[0].filename == __file__


def test_every_deprecation_is_listed_and_has_a_version_to_come() -> None:
    version = tuple(map(int, __version__.split(".")))
    for row in DEPRECATIONS:
        assert tuple(map(int, row.gone.split("."))) > version, f"{row.name} goes now"
        assert f"| `{row.name}` | `{row.replacement}` | {row.gone} |" in PAGE
    for name in GONE:
        assert f"`{name}`" in PAGE


def test_newer_names_warn_of_nothing(model: Encoder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        model.encode_query(["a boat"], batch_size=2)
    with pytest.raises(TypeError, match="multiple values|unexpected|texts"):
        model.encode_query(["a boat"], texts=["a ship"], queries=["a"])  # type: ignore[call-overload]


def test_a_command_that_is_gone_names_what_there_is_instead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lexvl_anserini", "ceiling"], capture_output=True, text=True, check=False
    )
    expected = "error: lexvl ceiling: gone since 0.3.0; in a checkout: python tools/world ceiling"
    assert (done.returncode, done.stderr.strip()) == (2, expected)


@pytest.mark.parametrize("command", OLDER["options"])
def test_a_command_of_an_older_version_has_its_options_or_is_gone(command: str) -> None:
    if command in GONE:
        assert command not in NOW
        return
    flags = {flag for line in NOW[command] for flag in line.partition(": ")[0].split()}
    assert set(OLDER["options"][command].split()) - flags == GONE_FLAGS.get(command, set())


@pytest.mark.parametrize("name", OLDER["parameters"])
def test_a_public_name_of_an_older_version_has_its_parameters_at_their_places(name: str) -> None:
    item: object = lexvl_anserini
    for part in name.split("."):
        item = getattr(item, part)
    if name == "LexvlError":
        return  # an exception: its message
    kinds = inspect.Parameter
    now = {parameter.name: parameter.kind for parameter in inspect.signature(item).parameters.values()}  # type: ignore[arg-type]
    older = [RENAMED.get(name, {}).get(parameter, parameter) for parameter in OLDER["parameters"][name].split()]
    assert set(older) <= set(now)
    by_place = [parameter for parameter in older if now[parameter] == kinds.POSITIONAL_OR_KEYWORD]
    assert list(now)[: len(by_place)] == by_place
