"""What a store must do to hold an index of impacts: `ImpactStore`, one subclass per store; its URLs and its errors.

qdrant+http://HOST:6333/NAME            qdrant+https://...          qdrant+file:FOLDER/NAME    qdrant+edge:FOLDER/NAME
opensearch+http://HOST:9200/NAME        opensearch+https://...

`USER:PASSWORD@` before HOST stays in the memory of this process. An index is one table of the store, in which a row is
a document or a note (`folder.py`). A table is loaded under another name and published at the end.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote
from uuid import UUID

from lexvl_anserini.ground.errors import ArtefactError, LexvlError, MissingExtra, StoreError, UsageError, describe_error

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
    """Where an index is; its text is the URL without a login. A folder has neither host nor port."""

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
        expected = "at most 40 lower-case letters, digits and underscores, a letter first"
        raise UsageError(f"{shown}: the name of the index is {name[:60]!r}, expected {expected}")
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


# Between the name of an index and the token of one building of it.
SUFFIX = "_lexvl_"


class StoreRow(NamedTuple):
    """A row of a table: a document with its dimensions, ascending, and impacts; or a note, named by `name_note`."""

    doc_id: str
    dims: Sequence[int] = ()
    impacts: Sequence[float] = ()
    note: str = ""


class Trouble(NamedTuple):
    """What a store's error means, and what to do."""

    reason: str
    remedy: str


UNREACHABLE = Trouble("cannot be reached", "is it running, and is the address right?")
MISSING = Trouble("no such index", "build it with lexvl index SHARDS --index URL")


class ImpactStore(ABC):
    """A connection to the index of one place, published or being loaded.

    Attributes:
        variables: of the environment that hold the login, for errors.
        most_terms: of a query; None for any number.
        ordered: hits come in the order of `runs/order.py`, also across the cut.
        significant_bits: of an impact that the store keeps.
        settings: options of building and their values, the default first.
    """

    title: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]
    variables: ClassVar[str] = ""
    most_terms: ClassVar[int | None] = None
    ordered: ClassVar[bool] = False
    significant_bits: int = 24
    settings: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    # The connection of the client; None where a folder does not exist yet.
    served: Any = None

    def __init__(self, place: StorePlace, settings: Mapping[str, str] | None = None):
        self.place, self.chosen = place, dict(settings or {})
        # The table that queries read: the published one, or while it is loaded the new one.
        self.table = place.name
        with self.errors():
            self._connect()

    def client(self, module: str = "") -> Any:
        """A module of the extra, which may not be installed; without a name the client's."""
        try:
            return import_module(module or self.package)
        except ImportError as error:
            raise MissingExtra(f"{self.place}: {self.title}", self.extra) from error

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of the client into one line."""
        try:
            yield
        except LexvlError:
            raise
        except Exception as error:
            trouble, reason = self._explain(error), describe_error(error)
            if password := self.place.login.password:
                reason = reason.replace(password, "***")
            if trouble is None:
                raise StoreError(f"{self.place}: {self.title} failed ({reason})") from error
            kind = ArtefactError if trouble is MISSING else StoreError
            raise kind(f"{self.place}: {trouble.reason} ({reason}); {trouble.remedy}") from error

    def refuse_login(self) -> Trouble:
        """The trouble of a refused login."""
        where = f"set {self.variables}, or " if self.variables else ""
        return Trouble("refuses the login", f"{where}give USER:PASSWORD@ before the host")

    def refuse_version(self, version: str, least: tuple[int, ...], what: str) -> None:
        """Refuses a server of an older version."""
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[: len(least)])
        if numbers < least:
            expected = ".".join(map(str, least))
            raise StoreError(f"{self.place}: {self.title} {version}, expected {expected} or newer, which has {what}")

    def fresh_name(self) -> str:
        """The name of a new table of this index, for the time of loading and after."""
        return f"{self.place.name}{SUFFIX}{token_hex(4)}"

    def is_ours(self, table: str) -> bool:
        """True for a name of `fresh_name`."""
        return re.fullmatch(rf"{self.place.name}{SUFFIX}[0-9a-f]{{8}}", table) is not None

    @abstractmethod
    def _connect(self) -> None:
        """Opens the connection."""

    @abstractmethod
    def _explain(self, error: Exception) -> Trouble | None:
        """What an error of the client means; None for any other failure."""

    @abstractmethod
    def open(self) -> bool:
        """Directs queries to the published table; False without one, an error for one that is not ours."""

    @abstractmethod
    def begin(self) -> None:
        """Makes an empty table under a fresh name; removes unfinished older ones."""

    @abstractmethod
    def add(self, rows: Sequence[StoreRow]) -> None:
        """Adds documents or notes to the new table; every one is stored, or an error."""

    @abstractmethod
    def settle(self) -> None:
        """Returns when all that was added is counted and found."""

    @abstractmethod
    def publish(self) -> None:
        """Gives the new table the name of the index, in one step; the older table is removed."""

    @abstractmethod
    def abandon(self) -> None:
        """Removes the new table, unless it is published: a server may have done what its answer does not say."""

    @abstractmethod
    def rows(self, names: Sequence[str]) -> Iterable[StoreRow]:
        """The rows of documents by their ids, or of notes by their names; without those that the table lacks."""

    @abstractmethod
    def count(self) -> int:
        """The number of rows, documents and notes."""

    @abstractmethod
    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """The ids and scores of the `count` best documents, scores descending; without documents of score 0."""

    @abstractmethod
    def size(self) -> int | None:
        """Bytes of the index; None from a store that does not say."""

    def close(self) -> None:
        """Closes the connection."""
        if self.served is not None:
            self.served.close()

    def read_notes(self, first: int, count: int) -> list[str]:
        """Notes by number, fewer where the table has none."""
        names = list(map(name_note, range(first, first + count)))
        notes = {row.doc_id: row.note for row in self.rows(names)}
        return [notes[name] for name in names if name in notes]

    def vectors(self, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
        """The vectors of the documents that the table has, dimension -> impact, which must be integers."""
        rows = {row.doc_id: row for row in self.rows(doc_ids)}
        if any(impact != round(impact) for row in rows.values() for impact in row.impacts):
            raise ArtefactError("a stored impact is no integer; the store rounds, or another program wrote it")
        return {name: dict(zip(map(int, row.dims), map(round, row.impacts), strict=True)) for name, row in rows.items()}


def make_key(name: str) -> str:
    """A UUID for a document's id, or for the name of a note, which has a blank: stores look rows up by it."""
    return str(UUID(bytes=blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()))


def name_note(number: int) -> str:
    """The id of the row of a note; no id of a document has a blank."""
    return f"lexvl note {number}"
