"""The URL of an index in a store, and the logins that come with URLs.

qdrant+http://HOST:6333/NAME            qdrant+https://...          qdrant+file:FOLDER/NAME    qdrant+edge:FOLDER/NAME
opensearch+http://HOST:9200/NAME        opensearch+https://...

`USER:PASSWORD@` may stand before HOST. It is kept in the memory of this process and never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote

from lexvl_anserini.ground.errors import UsageError

# The forms of URLs: those of servers, and those of folders of each engine.
SERVERS = ("http", "https")
FOLDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({"opensearch": (), "qdrant": ("file", "edge")})

PORTS: Mapping[str, int] = MappingProxyType({"opensearch": 9200, "qdrant": 6333})

# Several slashes become one where a path of the standard library holds a URL.
_URL = re.compile(rf"({'|'.join(PORTS)})(?:\+(\w*))?:(/*)(.*)", re.DOTALL)

# Names that every store takes; a suffix of an unfinished index still fits.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Login(NamedTuple):
    """User and password (or key); empty where a URL names none."""

    user: str = ""
    password: str = ""


# Logins of URLs that this process has read: an index is opened by its index.json, which has none.
_LOGINS: dict[str, Login] = {}


@dataclass(frozen=True)
class StorePlace:
    """Where an index is; its text is the URL without a login.

    Attributes:
        engine: a row of `registry.ENGINES`.
        form: http, https, file or edge.
        host, port: of a server; empty and 0 of a folder.
        path: between host and name, or a folder; may be empty.
        name: of the index.
        url_login: login of the URL.
    """

    engine: str
    form: str
    host: str
    port: int
    path: str
    name: str
    url_login: Login = field(default=Login(), repr=False, compare=False)

    def __str__(self) -> str:
        if self.local:
            return f"{self.engine}+{self.form}:{self.path}/{self.name}"
        return f"{self.engine}+{self.address}{'/' + self.path if self.path else ''}/{self.name}"

    @property
    def local(self) -> bool:
        """True for a folder of this machine."""
        return self.form in FOLDERS[self.engine]

    @property
    def login(self) -> Login:
        """The login of the URL, or the one that came with this URL before in this process."""
        return self.url_login if any(self.url_login) else _LOGINS.get(str(self), Login())

    @property
    def address(self) -> str:
        """The server's own URL."""
        return f"{self.form}://{self.host}:{self.port}"

    def hide_password(self, text: str) -> str:
        """A text of another program without the login's password."""
        return text.replace(self.login.password, "***") if self.login.password else text


def parse_url(index: str | Path) -> StorePlace:
    """The place that a URL names; its login is remembered for this process."""
    # For errors, without what comes before an @ or after a `?`.
    shown = re.sub(r"(:/*)[^/]*@", r"\1***@", str(index)).partition("?")[0]
    match = _URL.fullmatch(str(index))
    if match is None:
        raise UsageError(f"{shown}: no URL of an index in a store")
    engine, form, slashes, rest = match[1], match[2] or "", match[3], match[4]
    forms = (*SERVERS, *FOLDERS[engine])
    if form not in forms:
        raise UsageError(f"{shown}: expected {', '.join(f'{engine}+{form}:' for form in forms)}")
    if "?" in rest:
        raise UsageError(f"{shown}: parameters after `?`; expected none, and a login before the host")
    before, _, name = rest.rpartition("/")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{shown}: the name of the index is {name[:60]!r}, expected at most 40 lower-case letters, digits and "
            "underscores, a letter first, which every store takes"
        )
    if form in FOLDERS[engine]:
        folder = Path(("/" if slashes else "") + before)
        return StorePlace(engine, form, "", 0, str(folder.absolute()), name)
    authority, _, path = before.partition("/")
    login, _, server = authority.rpartition("@")
    user, _, password = login.partition(":")
    host, colon, port = server.rpartition(":") if re.search(r":\d*$", server) else (server, "", "")
    if not host or (colon and not port):
        raise UsageError(f"{shown}: expected {engine}+{form}://HOST:PORT/NAME")
    url_login = Login(unquote(user), unquote(password))
    place = StorePlace(engine, form, host, int(port or PORTS[engine]), path, name, url_login)
    if any(url_login):
        _LOGINS[str(place)] = url_login
    return place
