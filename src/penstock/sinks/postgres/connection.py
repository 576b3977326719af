"""Connections of a sink to its database, and what the database raises as errors of the sink.

A connection is opened for each piece of work and closed after it: none is left open in a worker, and a pooler in
front of the database may give each transaction another session, so nothing is set for longer than one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model.pem import DatabaseTls
from penstock.postgres import Connection, Database, is_access_refused, is_tls_failure, message_of

_ACCESS_HINT = "ask the owner of the database for the privileges, or use another user"
_NO_DATABASE = re.compile(r"database .* does not exist", re.IGNORECASE)

# The server or the connection ended the statement: its effect is rolled back, or unknown.
_LOST_CLASSES = ("08", "57")
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
# Connections, memory, disk: all but the last recover by themselves.
_SHORT_CLASS = "53"
_FULL = errors.DiskFull
# Conditions of one row: data, integrity, a size limit, a view's check, and what a trigger raises on purpose.
_ROW_CLASSES = ("22", "23", "44")
_ROW_STATES = ("54000", "P0001")


class SinkDatabase(Database):
    """The database that a sink writes to."""

    def __init__(self, sink: str, url: str, tls: DatabaseTls | None = None) -> None:
        super().__init__(url, tls)
        self._sink = sink

    @contextmanager
    def session(self, doing: str, *, starting: bool = False) -> Iterator[Connection]:
        """A connection, with whatever the database raises inside as an error of this sink."""
        with self.connect(starting=starting) as connection, self.failures(doing):
            yield connection

    @contextmanager
    def connect(self, *, starting: bool = False) -> Iterator[Connection]:
        """A connection in autocommit mode, closed at the end; what was not committed is rolled back.

        A database that cannot be reached at the start of a run is missing; later it may come back.
        """
        if not self.is_valid:
            raise MissingError(
                "SINK_URL_INVALID",
                f"sink {self._sink}: the url is not one of a PostgreSQL database",
                hint="write postgresql://user:password@host:5432/database, with other characters than letters and"
                " digits in the password percent-encoded",
            )
        try:
            connection = self.open(autocommit=True)
        except psycopg.Error as error:
            missing = self._unavailable(error)
            if starting:
                raise missing from None
            raise TransientError(missing.code, missing.summary, context=missing.context, hint=missing.hint) from None
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def failures(self, doing: str) -> Iterator[None]:
        """Raise what goes wrong inside as an error of this sink; `doing` says what was being done."""
        try:
            yield
        except psycopg.Error as error:
            raise self.failure(error, doing) from None

    def failure(self, error: psycopg.Error, doing: str) -> PenstockError:
        """The error of this sink for what the database raised, which says whether to try again."""
        summary = f"sink {self._sink}: {doing}: {self.scrub(message_of(error))}"
        if isinstance(error, _CONFLICTS):
            return TransientError(
                "SINK_COMMIT_CONFLICT", summary, hint="another transaction holds a lock that this one needs"
            )
        if isinstance(error, errors.InsufficientPrivilege):
            return MissingError("SINK_ACCESS_DENIED", summary, hint=_ACCESS_HINT)
        if isinstance(error, _FULL):
            return TerminalError("SINK_FAILED", summary, hint="free some space and start again")
        if _is_lost(error) or (error.sqlstate or "").startswith(_SHORT_CLASS):
            return TransientError("SINK_DATABASE_UNAVAILABLE", summary)
        return TerminalError("SINK_FAILED", summary)

    def _unavailable(self, error: psycopg.Error) -> MissingError:
        """The error for a connection that cannot be opened."""
        reason, context = self.reason(error), {"database": self.address}
        if _NO_DATABASE.search(message_of(error)):
            return MissingError(
                "SINK_DATABASE_MISSING",
                f"sink {self._sink}: connecting: {reason}",
                context=context,
                hint="create the database, or correct the end of the url",
            )
        if is_tls_failure(error):
            return MissingError(
                "SINK_TLS",
                f"sink {self._sink}: connecting: TLS handshake failed: {reason}",
                context=context,
                hint="check security.ca_file, the client certificate and its key, and the host in the url",
            )
        if is_access_refused(error):
            return MissingError(
                "SINK_ACCESS_DENIED",
                f"sink {self._sink}: connecting: the database refuses the user: {reason}",
                context=context,
                hint=f"check user and password in the url; {_ACCESS_HINT}",
            )
        return MissingError(
            "SINK_DATABASE_UNAVAILABLE",
            f"sink {self._sink}: connecting: {reason}",
            context=context,
            hint="check that the database runs, and the host and port in the url",
        )


def run(connection: Connection, *statements: str) -> int:
    """Run statements without parameters; the number of rows that the last one affected."""
    touched = 0
    for statement in statements:
        touched = connection.execute(statement.encode()).rowcount
    return touched


def fetch(connection: Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query; `values` are its parameters."""
    return connection.execute(statement.encode(), values or None).fetchall()


def _is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, and with it the answer."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST_CLASSES)


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether the database refused a row, rather than the statement."""
    state = error.sqlstate or ""
    return state.startswith(_ROW_CLASSES) or state in _ROW_STATES
