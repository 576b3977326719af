"""Errors that several sinks meet, in the same words: file systems, schemas, and the Java exceptions inside what Spark
raises.

Spark itself is not imported: its exceptions are known by their classes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.storage.disk_space import ROOM_HINT, is_full

_LONGEST_CHAIN = 20


def java_classes(error: BaseException) -> set[str]:
    """The classes of an error's Java exception and of its causes, with their superclasses."""
    found: set[str] = set()
    for cause in causes(error):
        kind = cause.getClass()
        while kind is not None:
            found.add(str(kind.getName()))
            kind = kind.getSuperclass()
    return found


def conditions(error: BaseException) -> set[str]:
    """The error conditions that Spark and Delta give an error and its causes, such as `DELTA_CONCURRENT_APPEND`."""
    found = {_condition(each) for each in (error, *causes(error))}
    return {str(condition) for condition in found if condition is not None}


def causes(error: BaseException) -> Iterator[Any]:
    """The Java exception of a Spark error, and its causes; nothing for any other error."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_LONGEST_CHAIN):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def _condition(error: Any) -> object:
    try:
        return error.getCondition()
    except Exception:  # an error, or a Java class, that has no such method
        return None


_JAVA_TRANSIENT = frozenset(
    {
        "java.net.SocketException",
        "java.net.SocketTimeoutException",
        "java.net.UnknownHostException",
        "java.util.concurrent.TimeoutException",
        "org.apache.hadoop.fs.s3a.AWSServiceIOException",
        "org.apache.hadoop.ipc.RetriableException",
        "org.apache.hadoop.ipc.StandbyException",
        "org.apache.spark.ExecutorDeadException",
        "software.amazon.awssdk.core.exception.ApiCallAttemptTimeoutException",
        "software.amazon.awssdk.core.exception.ApiCallTimeoutException",
    }
)


def messages(error: BaseException) -> list[str]:
    """What happened, and then its causes, out of a text that may contain stack traces of Java."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line.removeprefix(": ") for line in lines if line and not line.startswith("An error occurred while")]
    roots = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return [*(said[:1] or [type(error).__name__]), *roots]


_TRANSIENT_ERRNO = frozenset({errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.EMFILE, errno.ENFILE})


@contextmanager
def translating(translate: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise what goes wrong inside as the error that `translate` makes of it; our own errors pass as they are."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise translate(error) from error


def sink_failures(sink: str, doing: str) -> AbstractContextManager[None]:
    """Raise what goes wrong inside, in Arrow or the file system, as an error of this sink; `doing` was under way."""
    return translating(partial(sink_failure, sink, doing))


def sink_failure(sink: str, doing: str, error: BaseException) -> PenstockError:
    """The error of this sink that one of Arrow or of the file system amounts to."""
    summary = f"sink {sink}: {doing}: {messages(error)[0]}"
    return TransientError("SINK_UNAVAILABLE", summary) if is_transient(error) else sink_failed(summary, error)


def commit_conflict(summary: str) -> TransientError:
    """The error for a commit that another writer got ahead of."""
    return TransientError("SINK_COMMIT_CONFLICT", summary, hint="other writers commit to this table at the same time")


def sink_failed(summary: str, error: BaseException, context: Mapping[str, object] | None = None) -> TerminalError:
    """The error for a failure that will not go away by itself."""
    return TerminalError("SINK_FAILED", summary, context=context, hint=ROOM_HINT if is_full(error) else None)


def is_transient(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a timeout, an unavailable file system, also in Java."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return not _JAVA_TRANSIENT.isdisjoint(java_classes(error))


def is_store_failure(error: BaseException) -> bool:
    """Whether delta-rs or Arrow raised it for an object store: such an error has no number, one of a local disk has."""
    return type(error) is OSError and error.errno is None


def mismatch(sink: str, summary: str, context: Mapping[str, object], hint: str | None = None) -> MissingError:
    """The error for rows that do not fit the target."""
    return MissingError("SINK_SCHEMA_MISMATCH", f"sink {sink}: {summary}", context=context, hint=hint)
