"""What one request may cost: bytes, pixels, terms and seconds, and how many of a kind run at once."""

from __future__ import annotations

import time
from contextvars import ContextVar

# Bytes of a JSON body, of one with texts to embed, of a picture that is sent as a query, and of a call of a tool, which
# has the picture in base64; and of all bodies that are being received or answered.
MOST_JSON = 1 << 16
MOST_TEXTS = 1 << 20
MOST_UPLOAD = 16 << 20
MOST_BASE64 = (MOST_UPLOAD + 2) // 3 * 4
MOST_CALL = MOST_JSON + MOST_BASE64
MOST_HELD = 256 << 20

# Width times height of a picture that is sent as a query, and these times the scans of a JPEG; seconds and bytes of
# memory after which the process that decodes it is killed.
UPLOAD_PIXELS = 40_000_000
UPLOAD_SCANS = 16 * UPLOAD_PIXELS
DECODE_S = 10.0
DECODE_BYTES = 3 << 29

# Pictures that were sent, decoded and reduced to `UPLOAD_SIDE`; the oldest is forgotten first.
KEPT_UPLOADS = 64
UPLOAD_SIDE = 1024

# Characters of a query or a filter, of an id, and of a text beside a hit.
MOST_CHARACTERS = 2000
MOST_ID = 4096
SNIPPET = 400

# Texts, and pictures, that are embedded at once, in pieces of so many; hits of one answer; terms with weights; metadata
# filters.
MOST_EMBEDDED = 64
PIECE = 8
MOST_HITS = 100
MOST_WEIGHTS = 1000
MOST_FILTERS = 20

# A picture as a query of terms keeps that many, the heaviest; a page can show and change as many.
PICTURE_TERMS = 64

# Terms that are suggested, and values of a metadata field that are offered.
SUGGESTIONS = 10
OFFERED_VALUES = 50

# Seconds until a request has its answer, and until it has ended, with its body and all of the answer.
ANSWER_S = 30.0
REQUEST_S = 60.0

# When the work of this request is given up, as `time.monotonic` counts.
DEADLINE: ContextVar[float] = ContextVar("DEADLINE", default=float("inf"))


def refuse_late() -> None:
    """Ends work for which nobody waits any more: called between its pieces, each of which is short."""
    if time.monotonic() > DEADLINE.get():
        raise TimeoutError


# Requests of a kind that run at once, until their work has ended; others wait. Where `WAITING` of them do, or texts and
# pictures that are to be embedded cost more than `EMBEDDED` characters together, more would get no answer in time; they
# get 503 at once, and `LATER` says when to try again.
SEARCHES = 16
DRAWINGS = 4
MAPS = 2
EMBEDS = 2
WAITING = 128
EMBEDDED = 4 * MOST_EMBEDDED * MOST_CHARACTERS
LATER_S = 5
LATER = {"retry-after": str(LATER_S)}

# What is kept for later requests: bytes of each kind with what names them; queries, maps, documents with impacts.
KEPT_BYTES = 64 << 20
KEPT_QUERIES = 512
KEPT_MAPS = 512
KEPT_DOCUMENTS = 512
