"""Exports, and their encoders, leave a user's process as it was (tests/project/test_process_state.py)."""

from functools import cache, partial
from pathlib import Path

import pytest
from tiny_encoders import BERT

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_plugins.onnx.exporting import export
from tests.project.test_process_state import assert_unchanged, line, texts


def calls(folder: Path, golden: Path):
    corpus, topics = texts(folder)
    load = partial(load_encoder, "splade", device="cpu")
    yield "export", lambda: export(load(str(golden / BERT)), folder / "export")
    exported = cache(lambda: load(str(folder / "export"), runtime="onnx"))
    yield from line("exported", folder, corpus, exported, topics)


@pytest.mark.extended
def test_an_export_leaves_the_process_as_it_was(tmp_path: Path, golden: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'lexvl-anserini[onnx]'")
    assert_unchanged(__name__, tmp_path, golden, {"index exported": ["signals of the kernel"]})
