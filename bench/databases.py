"""A PostgreSQL server for the bench: the one that the tests start, with a fresh database for each run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_SERVER = Path(__file__).parent.parent / "tests/postgres.py"


@dataclass(frozen=True)
class Database:
    """One database, for clients of libpq by its URL."""

    url: str

    def jdbc(self) -> dict[str, str]:
        """The same for a JDBC driver."""
        parts = {name: str(value) for name, value in conninfo_to_dict(self.url).items()}
        url = f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"
        return {"url": url, "user": parts["user"], "password": parts["password"]}


@dataclass(frozen=True)
class Server:
    """A running server."""

    inner: Any

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A new database, gone afterwards."""
        name = self.inner.create_database()
        yield Database(self.inner.url(name))
        self.inner.drop_database(name)


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """A server with its defaults on a free port of this machine; its data is gone afterwards."""
    spec = importlib.util.spec_from_file_location("postgres_for_tests", _SERVER)
    assert spec is not None and spec.loader is not None, _SERVER
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder.mkdir(parents=True)
    with module.running_server(folder) as inner:
        yield Server(inner)
