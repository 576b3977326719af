"""What delta-rs, Arrow, the file system and the SQL engine raise, as errors that say whether to try again.

The class of an error decides, with its error number, or for Spark with the class of its Java exception.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import PenstockError, TransientError
from penstock.sinks import failures
from penstock.sinks.failures import conditions, java_classes

_JAVA_CONFLICT = frozenset(
    {
        "java.nio.file.FileAlreadyExistsException",
        "java.util.ConcurrentModificationException",  # above every conflict that Delta raises
        "io.delta.storage.commit.CommitFailedException",
        "org.apache.hadoop.fs.FileAlreadyExistsException",
        "org.apache.hadoop.fs.s3a.RemoteFileChangedException",
    }
)
_CONFLICT_CONDITIONS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")


class EngineError(Exception):
    """What the SQL engine raised, which is its cause."""


def engine_errors() -> AbstractContextManager[None]:
    """Raise whatever the engine raises inside as an `EngineError`."""
    return failures.translated((Exception,), engine_error)


def sink_failures(sink: str, doing: str) -> AbstractContextManager[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    return failures.translated(
        (OSError, DeltaError, EngineError, pa.ArrowException), partial(sink_failure, sink, doing)
    )


def sink_failure(sink: str, doing: str, error: BaseException) -> PenstockError:
    """The error of this sink that `error` amounts to."""
    summary = f"sink {sink}: {doing}: {failures.first_line(error)}"
    if is_conflict(error):
        return failures.commit_conflict(summary)
    if is_passing(error):
        return TransientError("SINK_UNAVAILABLE", summary)
    return failures.sink_failed(summary, error)


def is_conflict(error: BaseException) -> bool:
    """Whether another writer's commit came in between."""
    if isinstance(error, EngineError) and error.__cause__ is not None:
        cause = error.__cause__
        conflicts = (one.startswith(_CONFLICT_CONDITIONS) for one in conditions(cause))
        return not _JAVA_CONFLICT.isdisjoint(java_classes(cause)) or any(conflicts)
    return isinstance(error, CommitFailedError)


def is_passing(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a time-out, throttling."""
    if isinstance(error, EngineError) and error.__cause__ is not None:
        return is_passing(error.__cause__) or failures.is_passing_in_java(java_classes(error.__cause__))
    if failures.is_passing(error):
        return True
    # What delta-rs and Arrow raise for a store that did not answer has no number; an error of the local disk has one.
    return type(error) is OSError and error.errno is None


def engine_error(error: Exception) -> EngineError:
    """What the engine raised, with what went wrong and the root of it."""
    said, *roots = failures.messages(error)
    made = EngineError("; ".join([said, *(f"Caused by: {root}" for root in roots[-1:])]))
    made.__cause__ = error
    return made


def table_changed(sink: str) -> TransientError:
    """The error for a table that is not any more the one for which rows were staged."""
    return TransientError(
        "SINK_TABLE_CHANGED",
        f"sink {sink}: the table was changed since the rows were staged",
        hint="the batch is staged again, for the table as it is now",
    )


def others_first(sink: str) -> TransientError:
    """The error for a commit that other writers got ahead of."""
    return failures.commit_conflict(f"sink {sink}: other writers changed the table at the same time")
