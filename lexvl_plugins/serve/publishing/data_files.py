"""The data of a site: scripts that a page loads from any place, from a disk too, where pages may not read files."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson

DATA = "data"

# The function of the page that a data file calls with its name and content.
CALLED = "lexvl"


def write_part(site: Path, name: str, content: Any) -> int:
    """Writes the data file `name`; returns its bytes."""
    script = b"%s(%s,%s)\n" % (CALLED.encode(), orjson.dumps(name), orjson.dumps(content))
    (site / DATA / f"{name}.js").write_bytes(script)
    return len(script)


def as_text(octets: np.ndarray) -> str:
    """Bytes, uint8 [n], in zlib's format (`deflate` in a browser) as base64."""
    return base64.b64encode(zlib.compress(octets.tobytes(), 9)).decode()


def varying(numbers: np.ndarray) -> np.ndarray:
    """Numbers below 2^63 as bytes of 7 bits, the lowest first, of which each but a number's last has the bit 128."""
    numbers = numbers.astype(np.int64)
    groups = np.stack([numbers >> 7 * place for place in range(_most_groups(numbers))], axis=1)
    needed = np.ones_like(groups, bool)
    needed[:, 1:] = groups[:, 1:] > 0
    continued = np.zeros_like(needed)
    continued[:, :-1] = needed[:, 1:]
    octets: np.ndarray = ((groups & 127) | (continued << 7)).astype(np.uint8)[needed]
    return octets


def _most_groups(numbers: np.ndarray) -> int:
    return max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
