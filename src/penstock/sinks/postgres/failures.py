"""What the database raises, as errors that say whether to try again, and never show the connection string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError

# A statement or a connection that ended for a reason outside of it: what it did is rolled back, or unknown.
_LOST_CLASSES = ("08", "57")
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
# Connections, memory, disk: all but the last come back by themselves.
_SHORT_CLASS = "53"
_FULL = errors.DiskFull
# Conditions of one row: data, integrity, a size limit, a view's check, and what a trigger raises on purpose.
_ROW_CLASSES = ("22", "23", "44")
_ROW_STATES = ("54000", "P0001")

DENIED_HINT = "ask the owner of the database for the rights, or give the sink another user"
TLS_HINT = "check security.ca_file, the client certificate and its key, and the host in the url"


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
        return MissingError("SINK_ACCESS_DENIED", summary, hint=DENIED_HINT)
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
