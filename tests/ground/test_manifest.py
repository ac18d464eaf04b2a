"""What a manifest refuses that older versions wrote."""

from __future__ import annotations

from typing import Any

import pytest

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import Manifest

TAUGHT = {"name": "vdr", "options": {"taught": {"words": {}}}}
FIELD = {"name": "image", "kind": "impact", "encoder": TAUGHT}


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ({"corpus": {"exif": "basic"}}, "EXIF metadata ('exif')"),
        ({"corpus": {"parts": [{}, {"exif": "gps"}]}}, "EXIF metadata ('exif')"),
        ({"encoder": TAUGHT}, "taught words ('taught')"),
        ({"encoder": {"name": "fields", "fields": [FIELD]}}, "taught words ('taught')"),
        ({"encoder": {"name": "vdr", "options": {"languages": True}}}, "queries in other languages ('languages')"),
    ],
)
def test_what_0_3_0_is_the_last_version_to_read(entries: dict[str, Any], what: str) -> None:
    manifest = {"kind": "impact", "encoder": {"name": "vdr"}, "corpus": {}, "counts": {}, "format": "lexvl/1"}
    assert Manifest.from_json(manifest).kind == "impact"
    with pytest.raises(ArtefactError) as refused:
        Manifest.from_json({**manifest, **entries}, "shards/manifest.json")
    assert str(refused.value) == (
        f"shards/manifest.json: has {what}, which 0.3.0 is the last version to read; use 0.3.0, or encode and index "
        "again into another folder"
    )
