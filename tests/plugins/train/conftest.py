"""Corpora that no test of training changes; runs without a drawn curve, which costs more than their steps."""

from collections.abc import Iterator

import pytest

from tests.plugins.train.tiny_training import write_pairs, write_plain_squares


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve queries, each with a passage and a hard negative."""
    return write_pairs(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four images for training and four for validation, one caption each."""
    return write_plain_squares(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session", autouse=True)
def undrawn() -> Iterator[None]:
    """An empty file instead of the curve; a test of the curve draws it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lexvl_plugins.train.loop.draw_curve", lambda log, path: path.touch())
        yield
