"""What delta-rs, Arrow, the file system and Spark raise, as errors that say whether to try again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from deltalake.exceptions import CommitFailedError

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


def sink_failures(sink: str, doing: str) -> AbstractContextManager[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    return failures.translating(partial(sink_failure, sink, doing))


def sink_failure(sink: str, doing: str, error: BaseException) -> PenstockError:
    """The error of this sink that `error` amounts to."""
    said, *causes = failures.messages(error)
    summary = "; ".join([f"sink {sink}: {doing}: {said}", *(f"Caused by: {cause}" for cause in causes[-1:])])
    if is_conflict(error):
        return failures.commit_conflict(summary)
    if failures.is_transient(error) or failures.is_store_failure(error):
        return TransientError("SINK_UNAVAILABLE", summary)
    return failures.sink_failed(summary, error)


def is_conflict(error: BaseException) -> bool:
    """Whether another writer committed first."""
    if isinstance(error, CommitFailedError) or not _JAVA_CONFLICT.isdisjoint(java_classes(error)):
        return True
    return any(one.startswith(_CONFLICT_CONDITIONS) for one in conditions(error))


def table_changed(sink: str) -> TransientError:
    """The error for a table that is not any more the one for which rows were staged."""
    return TransientError(
        "SINK_TABLE_CHANGED",
        f"sink {sink}: the table was changed since the rows were staged",
        hint="the batch is staged again for the current table",
    )


def others_first(sink: str) -> TransientError:
    """The error for a commit that other writers got ahead of."""
    return failures.commit_conflict(f"sink {sink}: other writers changed the table at the same time")
