"""Checks a built site: every link and anchor leads somewhere, and no page loads anything from another host."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a page loads a file; `href` of `a` only leads to one.
LOADING = {"src", "srcset", "data", "poster", "href"}
# What a style sheet loads.
STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.styles = ""
        self.in_style = False
        self.feed(text)
        self.loads += style_urls(self.styles)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the addresses and the anchors of an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.in_style = tag == "style"
        self.loads += style_urls(given.get("style", ""))
        for name in LOADING & given.keys():
            if tag == "a":
                self.leads.append(given[name])
            elif name == "srcset":
                self.loads += [part.split()[0] for part in given[name].split(",") if part.strip()]
            else:
                self.loads.append(given[name])

    def handle_endtag(self, tag: str) -> None:
        """Ends a style sheet."""
        self.in_style = False

    def handle_data(self, data: str) -> None:
        """Keeps the text of style sheets."""
        if self.in_style:
            self.styles += data


def style_urls(text: str) -> list[str]:
    """What a style sheet loads."""
    return [one or other for one, other in STYLE_URL.findall(text)]


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, one line each; empty if nothing is."""
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} has no page"]
    found = [line for path, page in pages.items() for line in _wrong(site, pages, path, page)]
    for sheet in sorted(site.rglob("*.css")):
        wrong = (_unloadable(sheet, address) for address in style_urls(sheet.read_text(encoding="utf-8")))
        found += [f"{sheet.relative_to(site)}: {line}" for line in wrong if line]
    return found


def _wrong(site: Path, pages: dict[Path, Page], path: Path, page: Page) -> Iterator[str]:
    name = path.relative_to(site)
    for address in page.loads:
        if line := _unloadable(path, address):
            yield f"{name}: {line}"
    for address in dict.fromkeys(page.leads):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{name}: the link {address} leads to no file"
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{name}: the link {address} leads to no anchor"


def _unloadable(path: Path, address: str) -> str:
    """Why a file cannot load another one; nothing if it can."""
    parts = urlsplit(address)
    if parts.scheme == "data" or not (parts.path or parts.netloc):
        return ""
    if parts.scheme or parts.netloc:
        return f"loads {address} from another host"
    return "" if (path.parent / unquote(parts.path)).exists() else f"loads {address}, which does not exist"


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "no problem")
    sys.exit(1 if lines else 0)
