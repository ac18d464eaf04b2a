"""The command `lexvl serve`: the search page over one or more indexes, for this machine unless --host names another."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.registry import AUTO

if TYPE_CHECKING:
    from lexvl_anserini.doors.serving.app import Service

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.doors.serving.serve")

DEFAULT_PORT = 8765
MOST_INDEXES = 4
# The query of --check and of the first answers, where the corpus has no topics.
TRIED = "a red boat"
# Times that each example is answered before the server is ready.
WARMING = 5


def tried(service: Service) -> dict[str, Any]:
    """What a first query finds, per index."""
    from lexvl_anserini.doors.serving.messages import Question

    description = service.description()
    query = next(iter(description.examples), TRIED)
    rows: dict[str, Any] = {"query": query}
    for index in description.indexes:
        answer = service.answer(Question(index=index.name, text=query, read_as="text", hits=10))
        first = answer.hits[0].doc_id if answer.hits else "no hit"
        rows[index.name] = f"{index.documents} documents, first hit {first}, {answer.timing.all_ms:.0f} ms"
        if index.problem:
            rows[f"{index.name}, problem"] = index.problem
    return rows


def warm(service: Service) -> None:
    """Answers some queries, because Java and the networks take several times as long for the first ones."""
    from lexvl_anserini.doors.serving.messages import Question

    description = service.description()
    for index in description.indexes:
        for text in (description.examples or [TRIED]) * WARMING:
            service.answer(Question(index=index.name, text=text, read_as="text"))


def warn_of_guests(host: str) -> None:
    """Logs a warning where other machines may reach the server."""
    from ipaddress import ip_address

    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        log.warning(
            "--host %s: whoever reaches this machine can search and see the pictures; there is no password", host
        )


def command(
    index: Annotated[
        list[str],
        typer.Option(help="Folder that index wrote, or URL of an index in a store; repeatable, for columns."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = DEFAULT_PORT,
    name: Annotated[
        list[str] | None, typer.Option(help="A name under which browsers may reach the server; repeatable.")
    ] = None,
    example: Annotated[
        list[str] | None, typer.Option(help="A query that the page offers; repeatable. Default the corpus's own.")
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="Where the encoder's checkpoint is now; once for each index, in order.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Open all, answer one query, print, and end.")] = False,
    data_dir: cli.DataDir = None,
    device: cli.Device = "auto",
    runtime: cli.Runtime = None,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Serve a search page and a JSON API over indexes.

    Example: python -m lexvl_anserini.doors.serving.serve --index indexes/demo
    """
    from lexvl_anserini.doors.serving import app, opened, server

    if len(index) > MOST_INDEXES:
        raise UsageError(f"{len(index)} indexes; a page has at most {MOST_INDEXES} columns")
    started = time.perf_counter()
    indexes = opened.served_indexes(
        index, checkpoint or [], device, data_dir, cli.encoder_settings((), runtime or AUTO)
    )
    listener = None if check else server.listening(host, port)
    shelf = opened.Shelf(indexes)
    try:
        service = app.Service(shelf, example or [])
        rows = tried(service)
        if listener is None:
            cli.print_rows(rows, style)
            return
        warm(service)
        log.info("%s after %.1f s, Ctrl-C ends", ", ".join(shelf.names), time.perf_counter() - started)
        warn_of_guests(host)
        url = server.url_of(listener)
        cli.print_rows({"page": url, "api": f"{url}openapi.json"}, style)
        sys.stdout.flush()
        server.raise_open_files()
        with suppress(KeyboardInterrupt):  # the usual end
            server.web_server(app.application(service), [*(name or []), host]).run(sockets=[listener])
    finally:
        shelf.close()
        if listener is not None:
            listener.close()


if __name__ == "__main__":
    cli.run(command)
