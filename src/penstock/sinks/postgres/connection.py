"""Connections to one database. Its URL is a secret: no error, target or repr shows it.

A connection is made for each piece of work and closed after it: none is left open in a worker, and a pooler in
front of the database may hand each transaction another session, so nothing is set for longer than one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model.pem import DatabaseTls

Connection = psycopg.Connection[tuple[Any, ...]]

_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 10,
    # A server that vanished without a word is noticed within a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "penstock",
}
_DENIED = re.compile(
    r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist|permission denied|SASL",
    re.IGNORECASE,
)
_TLS = re.compile(r"\bSSL\b|certificate|\bTLS\b", re.IGNORECASE)
_DENIED_HINT = "ask the owner of the database for the rights, or give the sink another user"
_NO_DATABASE = re.compile(r"database .* does not exist", re.IGNORECASE)


class Database:
    """Where a sink writes: makes connections, and tells of itself without its secrets."""

    def __init__(self, sink: str, url: str, tls: DatabaseTls | None = None) -> None:
        self._sink = sink
        self._url = url
        self._tls = tls

    def __repr__(self) -> str:
        return f"Database({self.address})"

    @property
    def address(self) -> str:
        """Host, port and database, without user and password."""
        try:
            parts = self._parts()
        except PenstockError:
            return "postgresql"
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"{host}{port}/{parts.get('dbname') or 'the default database'}"

    def scrub(self, message: str) -> str:
        """The message without what of the URL is nobody's business."""
        try:
            parts = self._parts()
        except PenstockError:
            return "the database's message is left out: it may quote the url"
        for name in ("password", "sslpassword", "passfile"):
            if parts.get(name):
                message = message.replace(str(parts[name]), "***")
        if parts.get("user"):
            message = re.sub(rf'(user|role) "{re.escape(str(parts["user"]))}"', r"\1 ***", message)
        return message

    @contextmanager
    def connect(self, *, starting: bool = False) -> Iterator[Connection]:
        """A connection, closed at the end; what was not committed is rolled back.

        A database that cannot be reached at the start of a run is missing; later it may come back.
        """
        connection = self.open(starting=starting)
        try:
            yield connection
        finally:
            connection.close()

    def open(self, *, starting: bool = False) -> Connection:
        """A connection in autocommit mode, for the caller to close. Statements are never prepared by name."""
        settings = {name: value for name, value in _DEFAULTS.items() if name not in self._parts()}
        settings |= self._tls.settings() if self._tls is not None else {}
        try:
            whole = make_conninfo(self._url, client_encoding="utf8", **settings)
            return psycopg.connect(whole, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            missing = self._missing(error)
            if starting:
                raise missing from None
            # libpq gives no code for what went wrong, and its words do not decide whether it passes.
            raise TransientError(missing.code, missing.summary, context=missing.context, hint=missing.hint) from None
        except UnicodeError:
            raise self._invalid() from None

    def _missing(self, error: psycopg.Error) -> MissingError:
        """What cannot be reached; the words of libpq choose the hint."""
        said = message_of(error)
        # libpq puts the address in front of what the server answered.
        reason = self.scrub(said.split("FATAL:")[-1].strip())
        context = {"database": self.address}
        if _NO_DATABASE.search(said):
            return MissingError(
                "SINK_DATABASE_MISSING",
                f"sink {self._sink}: connecting: {reason}",
                context=context,
                hint="create the database, or correct the end of the url",
            )
        if _TLS.search(said):
            return MissingError(
                "SINK_TLS",
                f"sink {self._sink}: connecting: TLS handshake failed: {reason}",
                context=context,
                hint="check security.ca_file, the client certificate and its key, and the host in the url",
            )
        if _DENIED.search(said):
            return MissingError(
                "SINK_ACCESS_DENIED",
                f"sink {self._sink}: connecting: the database refuses the user: {reason}",
                context=context,
                hint=f"check user and password in the url; {_DENIED_HINT}",
            )
        return MissingError(
            "SINK_DATABASE_UNAVAILABLE",
            f"sink {self._sink}: connecting: {reason}",
            context=context,
            hint="check that the database runs, and the host and port in the url",
        )

    def _parts(self) -> dict[str, Any]:
        try:
            return conninfo_to_dict(self._url)
        except (psycopg.Error, UnicodeError):
            raise self._invalid() from None

    def _invalid(self) -> MissingError:
        return MissingError(
            "SINK_URL_INVALID",
            f"sink {self._sink}: the url is not one of a PostgreSQL database",
            hint="write postgresql://user:password@host:5432/database, with other characters than letters and digits"
            " in the password percent-encoded",
        )


def run(connection: Connection, *statements: str) -> int:
    """Run statements that have their values in them; the number of rows that the last one touched."""
    touched = 0
    for statement in statements:
        touched = connection.execute(statement.encode()).rowcount
    return touched


def fetch(connection: Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query; `values` stand for its `%s`."""
    return connection.execute(statement.encode(), values or None).fetchall()


# What the database raises, as errors that say whether to try again, and never show the connection string.

# A statement or a connection that ended for a reason outside of it: what it did is rolled back, or unknown.
_LOST_CLASSES = ("08", "57")
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
# Connections, memory, disk: all but the last come back by themselves.
_SHORT_CLASS = "53"
_FULL = errors.DiskFull
# Conditions of one row: data, integrity, a size limit, a view's check, and what a trigger raises on purpose.
_ROW_CLASSES = ("22", "23", "44")
_ROW_STATES = ("54000", "P0001")


@contextmanager
def database_failures(sink: str, doing: str, scrub: Callable[[str], str]) -> Iterator[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    try:
        yield
    except psycopg.Error as error:
        raise database_failure(sink, doing, error, scrub) from None


def database_failure(sink: str, doing: str, error: psycopg.Error, scrub: Callable[[str], str]) -> PenstockError:
    """The error of this sink that `error` amounts to."""
    summary = f"sink {sink}: {doing}: {scrub(message_of(error))}"
    if isinstance(error, _CONFLICTS):
        return TransientError(
            "SINK_COMMIT_CONFLICT", summary, hint="other transactions hold what this one needs at the same time"
        )
    if _is_lost(error):
        return TransientError("SINK_DATABASE_UNAVAILABLE", summary)
    if isinstance(error, errors.InsufficientPrivilege):
        return MissingError("SINK_ACCESS_DENIED", summary, hint=_DENIED_HINT)
    if (error.sqlstate or "").startswith(_SHORT_CLASS) and not isinstance(error, _FULL):
        return TransientError("SINK_DATABASE_UNAVAILABLE", summary)
    hint = "free some space and start again" if isinstance(error, _FULL) else None
    return TerminalError("SINK_FAILED", summary, hint=hint)


def _is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, and with it the answer."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST_CLASSES)


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether the database refused a row, rather than the statement."""
    state = error.sqlstate or ""
    return state.startswith(_ROW_CLASSES) or state in _ROW_STATES


def message_of(error: psycopg.Error, limit: int = 300) -> str:
    """The database's words in one line, without its details: these quote whole rows."""
    said = error.diag.message_primary or str(error)
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= limit else line[:limit] + "..."
