"""Finds the types of metadata fields, by reading all values before the first one is indexed.

| values of a key                 | type    | in Lucene                                  |
|---------------------------------|---------|--------------------------------------------|
| texts, true and false           | keyword | one term, sorted doc values                |
| integers of 64 bits             | long    | point, numeric doc values                  |
| numbers with a fraction         | double  | point, numeric doc values                  |
| YYYY-MM-DD, all of them         | date    | as long: days since 1970-01-01             |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from lexvl_anserini.data.ids import MAX_ID_BYTES, fits_index
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.shards.reading import read_metadata

# Keys of dates end so.
DATE_SUFFIX = "_date"

LONG = range(-(2**63), 2**63)


def metadata_types(shards: Path, manifest: Manifest) -> dict[str, str]:
    """Key to type, of all metadata in the shards; keys in alphabetical order.

    Raises:
        ArtefactError: a key has values of more than one type, or one that no field can hold.
    """
    # Shards that encode wrote say whether they have metadata; others have to be read.
    if "shard_format" in manifest.layout and not manifest.layout.get("metadata"):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for entry in manifest.shards if manifest.may_have_metadata else ():
        for metadata in read_metadata(shards / entry["name"]):
            for key, value in metadata.items():
                if value is not None:
                    found.setdefault(key, {}).setdefault(value_type(key, value), value)
    return {key: key_type(key, kinds) for key, kinds in sorted(found.items())}


def value_type(key: str, value: Any) -> str:
    """The type of one value.

    Raises:
        ArtefactError: no field can hold it.
    """
    if isinstance(value, bool):
        return "keyword"
    if isinstance(value, int) and value in LONG:
        return "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str) and fits_index(value):
        return "date" if is_date(value) else "keyword"
    if isinstance(value, str):
        raise ArtefactError(
            f"metadata {key!r}: a text of {len(value.encode()):,} bytes, an index holds {MAX_ID_BYTES:,}; shorten it "
            "or index with --no-metadata"
        )
    raise ArtefactError(
        f"metadata {key!r}: {str(value)[:60]!r} is a {type(value).__name__}; expected a text, a number below 2^63 or a "
        "date, or index with --no-metadata"
    )


def is_date(text: str) -> bool:
    """True for YYYY-MM-DD."""
    try:
        return len(text) == 10 and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def key_type(key: str, kinds: Mapping[str, Any]) -> str:
    """The type of a key whose values have these types (each with an example); a date among texts is a text.

    Raises:
        ArtefactError: they are of more than one type, or a key named `..._date` holds something else.
    """
    texts = set(kinds) == {"date", "keyword"} and not key.endswith(DATE_SUFFIX)
    if len(kinds) == 1 or texts:
        kind = "keyword" if texts else next(iter(kinds))
        if kind == "keyword" and key.endswith(DATE_SUFFIX):
            raise ArtefactError(
                f"metadata {key!r}: {kinds[kind]!r}, expected a date YYYY-MM-DD, which its name promises"
            )
        return kind
    examples = ", ".join(f"{value!r} ({kind})" for kind, value in sorted(kinds.items()))
    raise ArtefactError(f"metadata {key!r} has values of more than one type: {examples}; give it one type")
