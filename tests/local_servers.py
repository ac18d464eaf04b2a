"""Servers of this machine for tests that fetch something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def answering(handler: Any) -> Iterator[str]:
    """The address of a server with a thread per connection; it says nothing of its requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def serving_files(folder: Path, requests: list[str]) -> Iterator[str]:
    """The address of a server of the files in a folder; `requests` gets the paths that are requested."""

    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            requests.append(self.path)

    with answering(partial(Files, directory=str(folder))) as address:
        yield address
