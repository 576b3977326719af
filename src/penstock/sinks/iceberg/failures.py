"""What catalogs, Spark and the file system raise, as errors that say whether to try again.

The class of an error decides, with its status, SQL state or error number. Spark is not imported here: the classes of
its Java exceptions are read from the exception object, together with those of their causes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from requests.exceptions import ChunkedEncodingError, HTTPError, RequestException, RetryError, Timeout
from requests.exceptions import ConnectionError as RequestConnectionError
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.sinks import failures
from penstock.sinks.failures import causes, java_classes

_TRANSIENT = (
    CommitStateUnknownException,
    ServiceUnavailableError,
    ServerError,
    TooManyRequestsError,
    WaitingForLockException,
    PoolTimeoutError,
    RequestConnectionError,
    Timeout,
    ChunkedEncodingError,
    RetryError,
)
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_TRANSIENT_SQL_STATES = ("08", "40", "53", "57")
"""Classes of SQL states: connection, transaction rolled back, out of resources, stopped by an operator."""
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6

_JAVA_CONFLICT = "org.apache.iceberg.exceptions.CommitFailedException"
_JAVA_TRANSIENT = frozenset(
    {
        "java.sql.SQLRecoverableException",
        "java.sql.SQLTransientException",
        "org.apache.iceberg.exceptions.CommitStateUnknownException",
        "org.apache.iceberg.exceptions.ServiceFailureException",
        "org.apache.iceberg.exceptions.ServiceUnavailableException",
        "org.apache.iceberg.shaded.org.apache.hc.core5.http.ConnectionClosedException",
        "org.apache.iceberg.shaded.org.apache.hc.core5.http.NoHttpResponseException",
    }
)
_SPARK_JOB = "org.apache.spark.SparkException"


def sink_failures(sink: str, doing: str, *, at_start: bool = False) -> AbstractContextManager[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    return failures.translating(partial(sink_failure, sink, doing, at_start=at_start))


def sink_failure(sink: str, doing: str, error: BaseException, *, at_start: bool = False) -> PenstockError:
    """The error of this sink that `error` amounts to. What is missing `at_start` must be fixed first."""
    said, *roots = failures.messages(error)
    summary = f"sink {sink}: {doing}: {said}"
    if isinstance(error, NotInstalledError | ImportError):
        return MissingError("SINK_CATALOG_UNSUPPORTED", summary, hint="install what the catalog needs")
    if isinstance(error, UnauthorizedError | ForbiddenError):
        return MissingError("SINK_CATALOG_REFUSED", summary, hint="check the catalog's credentials and rights")
    if is_conflict(error):
        return failures.commit_conflict(summary)
    if is_transient(error):
        return MissingError("SINK_UNAVAILABLE", summary) if at_start else TransientError("SINK_UNAVAILABLE", summary)
    return failures.sink_failed(summary, error, {"cause": roots[-1]} if roots else None)


def is_conflict(error: BaseException) -> bool:
    """Whether another writer committed first."""
    return isinstance(error, CommitFailedException) or _JAVA_CONFLICT in java_classes(error)


def is_transient(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a timeout, throttling."""
    if isinstance(error, _TRANSIENT) or failures.is_transient(error) or failures.is_store_failure(error):
        return True
    if isinstance(error, DBAPIError):
        return _is_transient_in_a_database(error)
    if isinstance(error, HTTPError):
        return error.response is not None and error.response.status_code in _TRANSIENT_STATUS
    if isinstance(error.__cause__, RequestException):  # what pyiceberg makes of an answer keeps it as the cause
        return is_transient(error.__cause__)
    if any(kind.__module__.startswith("thrift.transport.") for kind in type(error).__mro__):
        return True  # the Hive catalog's client, which need not be installed
    return _is_transient_in_java(error)


def _is_transient_in_a_database(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    name = getattr(error.orig, "sqlite_errorname", None)
    if name is not None:
        return bool(name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")))
    state = getattr(error.orig, "sqlstate", None)
    # Without a state there was no answer: the connection itself failed.
    return state.startswith(_TRANSIENT_SQL_STATES) if state else isinstance(error, OperationalError)


def _is_transient_in_java(error: BaseException) -> bool:
    classes, found = java_classes(error), list(causes(error))
    if not _JAVA_TRANSIENT.isdisjoint(classes):
        return True
    if "java.sql.SQLException" in classes and any(map(_is_transient_sql, found)):
        return True
    # A Spark job that ended without any task having raised something: its executors were lost.
    return bool(found) and found[-1].getClass().getName() == _SPARK_JOB and found[-1].getCondition() is None


def _is_transient_sql(cause: Any) -> bool:
    try:
        state, code = cause.getSQLState(), cause.getErrorCode()
    except Exception:  # another Java class, which has no such methods
        return False
    return state.startswith(_TRANSIENT_SQL_STATES) if state else code in (_SQLITE_BUSY, _SQLITE_LOCKED)
