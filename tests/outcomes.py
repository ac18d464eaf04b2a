"""What a run of tests did: it says why tests were skipped, limits their number, and leaves a list of the passed ones.

`--rest` runs the tests that the last run of this checkout did not pass: those that it skipped or did not choose.
"""

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

MOST = "LEXVL_MOST_SKIPPED"  # .ci/run sets it: a run that skips more tests fails
PASSED = "lexvl/passed"  # a key of pytest's cache
PLUGINS = "tests/plugins/"  # these run again: where all extras are installed, the packages of one can break another


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="only tests that the last run of this checkout did not pass")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests that the last run passed, but for those of plug-ins, where `--rest` is set."""
    if not config.getoption("rest"):
        return
    passed = _read_passed(config)
    if not passed:
        raise pytest.UsageError("--rest: no earlier run of this checkout; run the tests once without it")
    done = [item for item in items if item.nodeid in passed and not item.nodeid.startswith(PLUGINS)]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item.nodeid not in passed or item.nodeid.startswith(PLUGINS)]


def _read_passed(config: pytest.Config) -> set[str]:
    """The ids of the tests that the last run passed, and of those that runs with `--rest` passed after it."""
    cache = getattr(config, "cache", None)  # absent with `-p no:cacheprovider`
    return set(cache.get(PASSED, [])) if cache else set()


def _reports(config: pytest.Config, outcome: str) -> list[Any]:
    """The reports of an outcome; the workers of xdist have none."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get(outcome, []) if reporter else []


def _excess(config: pytest.Config) -> tuple[Counter[str], str]:
    """How many tests each reason skips, and why these are too many; "" if they are not, or without the variable."""
    reports = _reports(config, "skipped")
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
    passed = {report.nodeid for report in _reports(session.config, "passed")}
    cache = getattr(session.config, "cache", None)
    if passed and cache:
        earlier = _read_passed(session.config) if session.config.getoption("rest") else set()
        cache.set(PASSED, sorted(earlier | passed))


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
