"""Commands in the test's own process, processes, and servers of this machine."""

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from lexvl_anserini.cli import Command, make_app


def call_command(command: Command, *arguments: Any) -> Result:
    """The outcome of a command, with what it prints or raises."""
    return CliRunner().invoke(make_app(command), [str(argument) for argument in arguments])


def invoked(command: Command, *arguments: Any) -> str:
    """What a command prints; what it raises is raised."""
    result = call_command(command, *arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def run_process(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with what it printed; `cwd`, `env` and `input` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def read_output(command: Sequence[str | Path], **options: Any) -> str:
    """What a process prints that must succeed."""
    done = run_process(command, **options)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-5000:]}\n{done.stderr[-4000:]}"
    return done.stdout


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


def write_texts(folder: Path, texts: Mapping[str, str]) -> Path:
    """Writes files by their paths in a folder, and makes what folders they need."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip(), encoding="utf-8")
    return folder
