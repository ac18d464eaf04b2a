"""The URL of an index in a store, and the logins that come with URLs.

qdrant+http://HOST:6333/NAME            qdrant+https://...          qdrant+file:FOLDER/NAME    qdrant+edge:FOLDER/NAME
milvus+http://HOST:19530/NAME           milvus+https://...          milvus+file:FILE.db/NAME
opensearch+http://HOST:9200/NAME        opensearch+https://...
pgvector://HOST:5432/DATABASE/NAME      with libpq's parameters after `?`

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

# The forms of URLs of each engine: those of servers, and those of folders and files.
SERVERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"opensearch": ("http", "https"), "qdrant": ("http", "https"), "milvus": ("http", "https"), "pgvector": ("",)}
)
FOLDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({"qdrant": ("file", "edge"), "milvus": ("file",)})

PORTS: Mapping[str, int] = MappingProxyType({"opensearch": 9200, "qdrant": 6333, "milvus": 19530, "pgvector": 5432})

# Several slashes become one where a path of the standard library holds a URL.
_URL = re.compile(rf"({'|'.join(SERVERS)})(?:\+(\w*))?:(/*)(.*)", re.DOTALL)

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

    engine      a row of `registry.ENGINES`
    form        http, https, file, edge, or empty
    host, port  of a server; empty and 0 of a folder, or where libpq chooses
    path        between host and name: a folder, a file, a database, or empty
    name        of the index
    parameters  after `?`
    url_login   login of the URL
    """

    engine: str
    form: str
    host: str
    port: int
    path: str
    name: str
    parameters: str = ""
    url_login: Login = field(default=Login(), repr=False, compare=False)

    def __str__(self) -> str:
        scheme = f"{self.engine}+{self.form}" if self.form else self.engine
        end = f"?{self.parameters}" if self.parameters else ""
        if self.local:
            return f"{scheme}:{self.path}/{self.name}{end}"
        address = f"{self.host}:{self.port}" if self.host else ""
        return f"{scheme}://{address}{'/' + self.path if self.path else ''}/{self.name}{end}"

    @property
    def local(self) -> bool:
        """True for a folder or a file of this machine."""
        return self.form in FOLDERS.get(self.engine, ())

    @property
    def login(self) -> Login:
        """The login of the URL, or the one that came with this URL before in this process."""
        return self.url_login if any(self.url_login) else _LOGINS.get(str(self), Login())

    @property
    def address(self) -> str:
        """The server's own URL."""
        return f"{self.form}://{self.host}:{self.port}"

    def without_login(self, text: str) -> str:
        """A text of another program without the login's password."""
        return text.replace(self.login.password, "***") if self.login.password else text


def parse_url(index: str | Path) -> StorePlace:
    """The place that a URL names; its login is remembered for this process."""
    text, _, parameters = str(index).partition("?")
    match = _URL.fullmatch(text)
    if match is None:
        raise UsageError(f"{_shown(index)}: no URL of an index in a store")
    engine, form, slashes, rest = match[1], match[2] or "", match[3], match[4]
    forms = (*SERVERS[engine], *FOLDERS.get(engine, ()))
    if form not in forms:
        expected = ", ".join(f"{engine}+{form}:" if form else f"{engine}:" for form in forms)
        raise UsageError(f"{_shown(index)}: expected {expected}")
    if re.search(r"(?i)pass|secret|key", parameters):
        raise UsageError(f"{_shown(text)}: a login among the parameters; expected USER:PASSWORD@ before the host")
    before, _, name = rest.rpartition("/")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{_shown(index)}: the name of the index is {name[:60]!r}, expected at most 40 lower-case letters, digits "
            "and underscores, a letter first, which every store takes"
        )
    if form in FOLDERS.get(engine, ()):
        folder = Path(("/" if slashes else "") + before) if before or slashes else Path()
        return StorePlace(engine, form, "", 0, str(folder.absolute()), name, parameters)
    authority, _, path = before.partition("/")
    if engine == "pgvector" and not path:
        authority, path = "", authority
    place = _served(index, engine, form, authority, path, name, parameters)
    if any(place.url_login):
        _LOGINS[str(place)] = place.url_login
    return place


def _served(
    index: str | Path, engine: str, form: str, authority: str, path: str, name: str, parameters: str
) -> StorePlace:
    login, _, server = authority.rpartition("@")
    user, _, password = login.partition(":")
    host, colon, port = server.rpartition(":") if re.search(r":\d*$", server) else (server, "", "")
    if (not host and engine != "pgvector") or (engine == "pgvector" and not path) or (colon and not port):
        expected = "pgvector://HOST/DATABASE/NAME" if engine == "pgvector" else f"{engine}+{form}://HOST:PORT/NAME"
        raise UsageError(f"{_shown(index)}: expected {expected}")
    number = int(port or PORTS[engine]) if host else 0
    return StorePlace(engine, form, host, number, path, name, parameters, Login(unquote(user), unquote(password)))


def _shown(index: str | Path) -> str:
    """A URL for an error, without what stands before an @."""
    return re.sub(r"(:/*)[^/]*@", r"\1***@", str(index))
