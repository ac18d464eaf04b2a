"""PostgreSQL with pgvector: one table with a `sparsevec` column, scanned with exact inner products.

The table is loaded, filled and named in one transaction. The key of a row is a digest of the document's id, which has
the collation "C", so that the server sorts ids by code points. An approximate index (HNSW) is not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

from lexvl_anserini.doors.stores.engine import StoreEngine
from lexvl_anserini.doors.stores.store import MISSING, UNREACHABLE, ImpactStore, StoreRow, Trouble, key_of
from lexvl_anserini.ground.errors import ArtefactError, StoreError

# The first version with `sparsevec`.
LEAST_VERSION = (0, 7)

CONNECTING_S = 10
# A reader keeps the table that it opened; a new one waits for it as long.
READERS_S = 60

# What the server says of logins that it refuses; the errors of a connection have no codes.
LOGIN_WORDS = ("authentication failed", "no password supplied", "no pg_hba.conf", 'role "')

# The comment of a table of ours.
COMMENT = "lexvl-store"


class PostgresStore(ImpactStore):
    """A table of PostgreSQL, by psycopg."""

    title = "PostgreSQL"
    package = "psycopg"
    extra = "pgvector"
    variables = "PGUSER and PGPASSWORD"
    most_postings: ClassVar[int | None] = 16_000
    ordered: ClassVar[bool] = True

    def _connect(self) -> None:
        psycopg = self.client()
        self.sql = self.client("psycopg.sql")
        self.vector = self.client("pgvector")
        place, login = self.place, self.place.login
        words = {"host": place.host, "port": place.port, "user": login.user, "password": login.password}
        self.served = psycopg.connect(
            f"postgresql:///{place.path}?{place.parameters}",
            connect_timeout=CONNECTING_S,
            **{name: value for name, value in words.items() if value},
        )
        try:
            self._prepare()
        except BaseException:
            self.served.close()
            raise

    def _prepare(self) -> None:
        # A reader sees one state from its first query to its last.
        self.served.isolation_level = self.client().IsolationLevel.REPEATABLE_READ
        version = self.served.execute("select extversion from pg_extension where extname = 'vector'").fetchone()
        if version is None:
            offered = self.served.execute("select 1 from pg_available_extensions where name = 'vector'").fetchone()
            if offered is None:
                raise StoreError(f"{self.place}: PostgreSQL has no extension pgvector; install it on the server")
            self.served.execute("create extension vector")
            version = self.served.execute("select extversion from pg_extension where extname = 'vector'").fetchone()
            self.served.commit()
        self.refuse_version(version[0], LEAST_VERSION, "sparse vectors (this is the version of pgvector)")
        self.client("pgvector.psycopg").register_vector(self.served)

    def _trouble(self, error: Exception) -> Trouble | None:
        text = str(error)
        kind = type(error).__name__
        if any(words in text for words in LOGIN_WORDS):
            return self.refused_login()
        if "database" in text and "does not exist" in text:
            return Trouble("no such database", "make it with createdb, or name another one")
        if kind == "OperationalError" or kind == "ConnectionTimeout":
            return UNREACHABLE
        if kind == "LockNotAvailable":
            return Trouble(f"another session reads the older index, for {READERS_S} s", "run it again after that")
        if kind == "InsufficientPrivilege":
            return Trouble("the user may not do this", "grant it, or ask for CREATE EXTENSION vector")
        return MISSING if kind == "UndefinedTable" else None

    def _query(self, text: str, **names: str) -> Any:
        """A statement with quoted names."""
        quoted = {name: self.sql.Identifier(value) for name, value in names.items()}
        return self.sql.SQL(text).format(table=self.sql.Identifier(self.table), **quoted)

    def open(self) -> bool:
        """The table of the name."""
        self.table = self.place.name
        row = self.served.execute(
            "select obj_description(oid, 'pg_class'), "
            "(select atttypmod from pg_attribute where attrelid = oid and attname = 'impacts') "
            "from pg_class where oid = to_regclass(%s)",
            [self.table],
        ).fetchone()
        if row is None:
            return False
        if row[0] != COMMENT:
            raise ArtefactError(f"{self.place}: a table that is no index of ours; name another index")
        self.width = row[1]
        return True

    def begin(self, width: int) -> None:
        """A table in a transaction of its own, which nobody else sees."""
        self.served.rollback()
        self.table = self.fresh_name()
        size = self.sql.Literal(width)
        self.served.execute(
            self.sql.SQL('create table {} (key uuid, id text collate "C", impacts sparsevec({}), note text)').format(
                self.sql.Identifier(self.table), size
            )
        )
        self.width, self.keyed = width, False

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Binary COPY; a note has neither id nor vector."""
        copying = self._query("copy {table} (key, id, impacts, note) from stdin with (format binary)")
        with self.served.cursor() as cursor, cursor.copy(copying) as copy:
            copy.set_types(["uuid", "text", "sparsevec", "text"])
            for row in rows:
                fields = (None, None, row.note) if row.note else (row.doc_id, self._sparse(row.dims, row.impacts), None)
                copy.write_row((UUID(key_of(row.doc_id)), *fields))

    def _sparse(self, dims: Sequence[int], values: Sequence[float]) -> Any:
        return self.vector.SparseVector(dict(zip(dims, values, strict=True)), self.width)

    def settle(self) -> None:
        """Makes the key; a transaction sees what it wrote."""
        if not self.keyed:
            # Faster for a full table than while it fills.
            key = f"{self.table}_pkey"
            self.served.execute(self._query("alter table {table} add constraint {key} primary key (key)", key=key))
            self.keyed = True
        self.served.execute(self._query("analyze {table}"))

    def publish(self) -> None:
        """Replaces the older table, and commits."""
        comment = self.sql.SQL("comment on table {} is {}").format(
            self.sql.Identifier(self.table), self.sql.Literal(COMMENT)
        )
        self.served.execute(comment)
        self.served.execute(f"set local lock_timeout = '{READERS_S}s'")
        self.served.execute(self._query("drop table if exists {name}", name=self.place.name))
        self.served.execute(self._query("alter table {table} rename to {name}", name=self.place.name))
        key, new = f"{self.table}_pkey", f"{self.place.name}_pkey"
        self.served.execute(self._query("alter index {key} rename to {new}", key=key, new=new))
        self.served.commit()
        self.table = self.place.name

    def abandon(self) -> None:
        """Rolls back."""
        self.served.rollback()

    def rows(self, names: Sequence[str]) -> Iterator[StoreRow]:
        """Rows by key."""
        keys = {key_of(name): name for name in names}
        query = self._query("select key::text, impacts, note from {table} where key = any(%s::uuid[])")
        for key, vector, note in self.served.execute(query, [list(keys)]).fetchall():
            dims, impacts = (vector.indices(), vector.values()) if vector is not None else ((), ())
            yield StoreRow(keys[key], dims, impacts, note or "")

    def count(self) -> int:
        """Exact."""
        return int(self.served.execute(self._query("select count(*) from {table}")).fetchone()[0])

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """A scan of all vectors; ties by code points of the ids."""
        rows = self.served.execute(
            self._query(
                "select id, -product from (select id, impacts <#> %s as product from {table}) as scored "
                "where product < 0 order by product, id limit %s"
            ),
            [self._sparse(dims, weights), count],
        ).fetchall()
        return [(doc_id, score) for doc_id, score in rows]

    def size(self) -> int | None:
        """Bytes of the table, its key and what is stored out of line."""
        return int(self.served.execute("select pg_total_relation_size(%s::regclass)", [self.table]).fetchone()[0])


class PgvectorEngine(StoreEngine):
    """An index of impacts in PostgreSQL."""

    name = "pgvector"
    stores = {"": PostgresStore}
