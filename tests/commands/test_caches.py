"""The places outside of the folders of commands: listed with their sizes, and cleared by name."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from lexvl_anserini.data.caches import command
from lexvl_anserini.ground.errors import UnknownName, UsageError
from tests.invoking import invoked

invoke = partial(invoked, command)


def test_caches_are_listed_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEXVL_STORAGE", "HF_HOME", "HF_HUB_CACHE", "IR_DATASETS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    for place, content in (("digests.sqlite3", b"12345"), ("exports/a/graph.onnx", b"123"), ("beir/mine/x", b"1")):
        (tmp_path / "data" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / place).write_bytes(content)
    listed = json.loads(invoke("--format", "json"))
    sizes = {name: row["bytes"] for name, row in listed.items() if row["bytes"]}
    assert sizes == {"digests": 5, "exports": 3, "datasets": 1}
    assert listed["hub"]["path"] == f"{tmp_path}/cache/huggingface/hub"
    assert "0.0 MB" in invoke("--clear", "exports", "--clear", "digests")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["beir"]
    with pytest.raises(UsageError, match="beir: other programs share it, or users put files there"):
        invoke("--clear", "datasets")
    with pytest.raises(UnknownName, match="did you mean 'exports'"):
        invoke("--clear", "export")
