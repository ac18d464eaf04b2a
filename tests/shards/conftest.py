"""What all tests of shards share."""

from __future__ import annotations

import os

import pytest
from word_towers import first_ids


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Tests need no power cut to be survived, and fsync is slow."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def encoded(monkeypatch):
    """First ids of the shards that are encoded."""
    return first_ids(monkeypatch)
