"""A hub in this process, to which `me` and `other` may write."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import serving

from tests.plugins.exchange.hub_uploads import UploadServer


@pytest.fixture
def hub(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadServer]:
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http.time, "sleep", lambda _: None)
    with serving(golden / "splade/ckpt_bert", tmp_path / "cache", monkeypatch, UploadServer) as server:
        server.home, server.writers = tmp_path / "hub", {"hf_writes": "me", "hf_other": "other"}
        yield server
