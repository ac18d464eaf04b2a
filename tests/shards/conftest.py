"""What all tests of shards share."""

import pytest
from word_towers import first_ids


@pytest.fixture
def encoded(monkeypatch):
    """First ids of the shards that are encoded."""
    return first_ids(monkeypatch)
