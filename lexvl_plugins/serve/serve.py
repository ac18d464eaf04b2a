"""The command `lexvl serve`: the search page over one or more indexes, for this machine unless --host names another."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.ground.errors import UsageError

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI

    from lexvl_plugins.serve.answering import Service
    from lexvl_plugins.serve.server import ApiKeys

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.serve.serve")

DEFAULT_PORT = 8765
MOST_INDEXES = 4
# The query of --check and of the first answers, where the corpus has no topics.
TRIED = "a red boat"
# Times that the first example is answered before the server is ready; others one time less.
WARMING = 6


def try_query(service: Service, times: int = 1) -> dict[str, Any]:
    """What a first query finds, per index; many times, because Java and the networks take longer for the first ones.

    One that cannot be opened is passed over then, and raises its problem when a call names it.
    """
    from lexvl_plugins.serve.messages import Question

    description = service.describe()
    queries = description.examples or [TRIED]
    rows: dict[str, Any] = {"query": queries[0]}
    for index in description.indexes:
        if times > 1 and service.shelf.is_closed(index.name):
            continue
        for text in [*queries * (times - 1), queries[0]]:
            answer = service.answer(Question(index=index.name, text=text, read_as="text", hits=10))
        first = answer.hits[0].doc_id if answer.hits else "no hit"
        rows[index.name] = f"{index.documents} documents, first hit {first}, {answer.timing.all_ms:.0f} ms"
        if index.problem:
            rows[f"{index.name}, problem"] = index.problem
    return rows


@dataclass(frozen=True)
class OpenOptions:
    """How indexes and their encoders are opened."""

    checkpoint: Annotated[
        list[str] | None, typer.Option(help="Where the encoder's checkpoint is now; once for each index, in order.")
    ] = None
    data_dir: cli.DataDir = None
    device: cli.Device = "auto"
    settings: cli.Settings = None

    @contextmanager
    def open(self, index: Sequence[str], examples: Sequence[str] = ()) -> Iterator[Service]:
        """The service over open indexes, which are closed after the block."""
        from lexvl_plugins.serve import answering, indexes

        if len(index) > MOST_INDEXES:
            raise UsageError(f"{len(index)} indexes; a server has at most {MOST_INDEXES}, the columns of its page")
        settings = cli.parse_settings(self.settings or ())
        places = indexes.name_indexes(index, self.checkpoint or [], self.device, self.data_dir, settings)
        shelf = indexes.Shelf(places)
        try:
            yield answering.Service(shelf, examples)
        finally:
            shelf.close()


@dataclass(frozen=True)
class ListenOptions:
    """Where a server listens, who may ask it, and what it logs."""

    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every one of this machine.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = DEFAULT_PORT
    name: Annotated[
        list[str] | None, typer.Option(help="A name under which clients may reach the server; repeatable.")
    ] = None
    keys: Annotated[
        Path | None, typer.Option(help="File with an API key a line; a request without one of them is refused.")
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept keys over plain HTTP from other machines.")] = (
        False
    )
    log_json: Annotated[bool, typer.Option("--log-json", help="Log a JSON line for each request, without queries.")] = (
        False
    )

    def read_keys(self) -> ApiKeys | None:
        """The keys; refused where a network would carry them."""
        from lexvl_plugins.serve.server import ApiKeys, check_address

        keys = ApiKeys.read(self.keys) if self.keys else None
        check_address(self.host, keys, self.insecure)
        return keys

    def run(self, app: FastAPI, listener: socket, keys: ApiKeys | None) -> None:
        """Answers requests until the process is interrupted."""
        from lexvl_plugins.serve import server

        sys.stdout.flush()
        server.raise_open_files()
        if keys and hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, keys.reload)
        with suppress(KeyboardInterrupt):  # the usual end
            server.build_server(app, [*(self.name or []), self.host], keys, self.log_json).run(sockets=[listener])


@cli.expand_options
def command(
    index: Annotated[
        list[str], typer.Option(help="Folder that index wrote, or URL of an index in a store; repeatable, for columns.")
    ],
    listen: ListenOptions,
    opening: OpenOptions,
    example: Annotated[
        list[str] | None, typer.Option(help="A query that the page offers; repeatable. Default the corpus's own.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Open all, answer one query, print, and end.")] = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Serve a search page and a JSON API over indexes.

    Example: python -m lexvl_plugins.serve.serve --index indexes/demo
    """
    from lexvl_plugins.serve import server

    started = time.perf_counter()
    keys = listen.read_keys()
    listener = None if check else server.open_socket(listen.host, listen.port)
    with listener or nullcontext(), opening.open(index, example or []) as service:
        if listener is None:
            cli.print_rows(try_query(service), style)
            return
        try_query(service, WARMING)
        log.info("%s after %.1f s, Ctrl-C ends", ", ".join(service.shelf.names), time.perf_counter() - started)
        url = server.format_url(listener)
        cli.print_rows({"page": url, "api": f"{url}openapi.json"}, style)
        listen.run(server.build_app(service), listener, keys)


if __name__ == "__main__":
    cli.run(command)
