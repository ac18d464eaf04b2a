"""The command `lexvl mcp`: indexes as tools of agents, over standard input and output or over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.registry import require
from lexvl_plugins.serve.serve import ListenOptions, OpenOptions

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.serve.mcp")


@contextmanager
def redirect_output() -> Iterator[None]:
    """Within the block, what libraries print to standard output goes to standard error: output is the protocol's."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


@cli.expand_options
def command(
    index: Annotated[list[str], typer.Argument(help="Folders that index wrote, or URLs of indexes in stores.")],
    listen: ListenOptions,
    opening: OpenOptions,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP at --host and --port; default standard input and output.")
    ] = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Serve indexes as tools of agents (MCP): search, explain, picture, map, indexes.

    Example: python -m lexvl_plugins.serve.mcp indexes/demo
    """
    require("mcp")
    if http:
        from lexvl_plugins.serve import agents, server
        from lexvl_plugins.serve.server import TOOLS_PATH

        keys = listen.read_keys()
        with server.open_socket(listen.host, listen.port) as listener, opening.open(index) as service:
            cli.print_rows({"mcp": server.format_url(listener) + TOOLS_PATH.strip("/")}, style)
            listen.run(agents.build_tools_app(service), listener, keys)
        return
    if listen != ListenOptions():
        raise UsageError("--host, --port, --name, --keys, --insecure and --log-json are for --http")
    import anyio

    from lexvl_plugins.serve.agents import run_stdio

    with ExitStack() as stack:
        with redirect_output():
            service = stack.enter_context(opening.open(index))
        log.info("%s: tools on standard input and output", ", ".join(service.shelf.names))
        with suppress(KeyboardInterrupt):
            anyio.run(run_stdio, service)


if __name__ == "__main__":
    cli.run(command)
