"""Measures a search page that runs: milliseconds from sending a query to its JSON, one client and many at once.

python runs/serving.py http://127.0.0.1:8765/ --clients 100
python runs/serving.py http://127.0.0.1:8765/ --browser     from the press of a key to its JSON, in a headless Chromium

Queries are the examples of the page with a number behind, so that each is encoded anew. `--browser` types these into
the field; it needs what `bash tests/browser.sh --install` installs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import sys
import threading
import time
from itertools import count
from urllib.parse import urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Between two presses of keys: a quick typist.
PRESS_EVERY_MS = 120


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> object:
    """The JSON of a path; raises RuntimeError for another status than 200."""
    headers = {"content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: status {answer.status}, {content[:200]!r}")
    return json.loads(content)


def measured(address: str, index: str, texts: list[str], clients: int, queries: int) -> tuple[list[float], list[str]]:
    """Milliseconds of each answer, ascending, and errors; `clients` threads send `queries` queries each."""
    numbers, times, errors = count(time.time_ns() % 10**6 * 1000), [], []

    def client() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        for _ in range(queries):
            number = next(numbers)
            question = {"index": index, "text": f"{texts[number % len(texts)]} {number}", "read_as": "text"}
            started = time.perf_counter()
            try:
                ask(connection, "POST", "/api/search", question)
                times.append((time.perf_counter() - started) * 1000)
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                errors.append(str(error))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times), errors


def pressed(url: str, texts: list[str]) -> str:
    """A line on milliseconds from each press of a key in the field to the last byte of the answer to it.

    The browser's own clock measures both: the time of the event, and the end of the first search that began after it.
    Presses that another one overtook before their search began do not count.
    """
    from playwright.sync_api import sync_playwright

    found: list[float] = []
    with sync_playwright() as started:
        chromium = next(path for name in BROWSERS if (path := shutil.which(name)))
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("section")
        page.evaluate(
            "performance.setResourceTimingBufferSize(100000); window.presses = [];"
            "document.addEventListener('keydown', (event) => window.presses.push(event.timeStamp), true)"
        )
        for number, text in enumerate(texts):
            page.locator("#query").press_sequentially(f"{text} {time.time_ns() % 10**6}{number}", delay=PRESS_EVERY_MS)
            page.locator("#query").fill("")
        page.wait_for_timeout(2000)
        presses = page.evaluate("window.presses")
        searches = page.evaluate(
            "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/api/search'))"
            ".map((one) => [one.startTime, one.responseEnd])"
        )
        browser.close()
    for press, following in zip(presses, [*presses[1:], float("inf")], strict=True):
        own = [end for start, end in searches if press <= start < following and end > 0]
        found += [min(own) - press] if own else []
    found.sort()
    return (
        f"browser: {len(found)} of {len(presses)} presses, p50 {statistics.median(found):.1f} ms, "
        f"p90 {found[int(0.9 * len(found))]:.1f} ms, load {os.getloadavg()[0]:.1f}\n"
    )


def main() -> None:
    """Prints one line for a client alone and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--queries", type=int, default=5, help="of each client at once; alone 40 times as many")
    parser.add_argument("--text", action="append", help="a query; default the page's examples")
    parser.add_argument("--browser", action="store_true", help="measure presses of keys in a browser instead")
    given = parser.parse_args()
    address = urlsplit(given.url).netloc
    described = ask(http.client.HTTPConnection(address), "GET", "/api/indexes")
    texts = given.text or described["examples"] or ["a red boat", "two dogs on a beach"]
    if given.browser:
        sys.stdout.write(pressed(given.url, texts))
        return
    for index in described["indexes"]:
        for clients, queries in ((1, 10), (1, 40 * given.queries), (given.clients, given.queries)):
            begun = time.perf_counter()
            times, errors = measured(address, index["name"], texts, clients, queries)
            rate = len(times) / (time.perf_counter() - begun)
            refused = sum("status 503" in error for error in errors)
            if queries == 10:  # the first ones warm up
                continue
            if not times:
                times = [float("nan")]
            p99 = times[int(0.99 * len(times))]
            load = os.getloadavg()[0]
            sys.stdout.write(
                f"{index['name']}, {index['documents']:,} documents, {clients} clients: {len(times)} answers, "
                f"{rate:.0f} a second, {refused} refused, {len(errors) - refused} other errors, "
                f"p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms, load {load:.1f}\n"
            )
            for error in errors[:3]:
                sys.stdout.write(f"  {error}\n")


if __name__ == "__main__":
    main()
