"""Indexes for people and programs: a search page with a JSON API, tools of agents (MCP), static files."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow

# Other plug-ins that this one imports.
NEEDS = ("pages", "photos")

SERVE = CommandRow("lexvl_plugins.serve.serve", "Index and search", "Serve a search page and a JSON API")
MCP = CommandRow("lexvl_plugins.serve.mcp", "Index and search", "Serve indexes as tools of agents (MCP)")
PUBLISH = CommandRow(
    "lexvl_plugins.serve.publish", "Index and search", "Write the search page as files that need no server"
)
