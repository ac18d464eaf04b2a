"""Skipped tests by reason, and a run that fails if more are skipped than $LEXVL_MOST_SKIPPED (.ci/run sets it)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

MOST = "LEXVL_MOST_SKIPPED"


def _excess(config: pytest.Config) -> tuple[Counter[str], str]:
    """How many tests each reason skips, and why these are too many; "" if they are not, or without the variable."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")  # the workers of xdist have none
    reports = reporter.stats.get("skipped", []) if reporter else []
    reasons = Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in reports)
    if MOST not in os.environ:
        return reasons, ""
    files = sorted({report.fspath for report in reports if isinstance(report, pytest.CollectReport)})
    if files:
        return reasons, f"files skipped as a whole: {', '.join(files)}"
    most, count = int(os.environ[MOST]), reasons.total()
    return reasons, f"{count} tests are skipped, expected at most {MOST}={most}" if count > most else ""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _excess(session.config)[1] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Generator[None]:
    """After everything else: the reasons with their numbers of tests."""
    yield
    reasons, excess = _excess(config)
    if MOST in os.environ:
        terminalreporter.section("skipped by reason")
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            terminalreporter.line(f"{count:5} {reason}")
    if excess:
        terminalreporter.line(f"FAILED: {excess}", red=True)
