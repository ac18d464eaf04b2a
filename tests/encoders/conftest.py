"""Copies of the tiny checkpoints that a test may damage, and where the tiny encoders of the table lie."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declared import SHARED
from tiny_encoders import Tiny


@pytest.fixture
def bert(golden: Path, tmp_path: Path) -> Path:
    """A copy of the tiny masked LM."""
    return Path(shutil.copytree(golden / "splade/ckpt_bert", tmp_path / "model"))


@pytest.fixture
def published(golden: Path, tmp_path: Path) -> Path:
    """A copy of the tiny published VDR checkpoint, its backbone's folder beside it."""
    shutil.copytree(golden / "vdr/tiny-bert", tmp_path / "tiny-bert")
    return Path(shutil.copytree(golden / "vdr/text-tiny", tmp_path / "published"))


@pytest.fixture(scope="session")
def splade(golden: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The reference's outputs, and the documents and queries that they are of."""
    texts = json.loads((golden / "splade/texts.json").read_text())
    return dict(np.load(golden / "splade/encode.npz")), texts["docs"], texts["queries"]


@pytest.fixture(scope="session")
def place(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """`place(where)`: the path that a place of the table of tiny encoders stands for; models are made once."""
    made: dict[Any, Path] = {}

    def path_of(where: Any) -> Path:
        if callable(where):
            if where not in made:
                made[where] = where(golden, tmp_path_factory.mktemp("made"))
            return made[where]
        where = where.removeprefix("path:")
        return SHARED / where.removeprefix("shared/") if where.startswith("shared/") else golden / where

    return path_of


@pytest.fixture(scope="session")
def located(place: Callable[[Any], Path]) -> Callable[[Tiny], tuple[str | None, dict[str, Any]]]:
    """`located(tiny)`: its checkpoint and its options as the loader takes them."""

    def arguments_of(tiny: Tiny) -> tuple[str | None, dict[str, Any]]:
        options = {
            key: str(place(value)) if str(value).startswith("path:") else value for key, value in tiny.options.items()
        }
        return None if tiny.checkpoint is None else str(place(tiny.checkpoint)), options

    return arguments_of
