"""What delta-rs, Arrow, the file system and the SQL engine raise, as errors that say whether to try again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.sinks import failures

_PASSING = re.compile(
    r"timed? ?out|throttl|slow ?down|too many requests|connection|temporarily|unavailable|reset by peer"
    r"|ExecutorLostFailure|\b(429|500|502|503|504)\b",
    re.IGNORECASE,
)
_CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)"
    r"|(Concurrent\w*|MetadataChanged|ProtocolChanged|CommitFailed|FileAlreadyExists|RemoteFileChanged)Exception"
)
_UNSUPPORTED = "Unsupported table features"


class EngineError(Exception):
    """What the SQL engine raised. Its classes are Spark's, which no sink knows: the text has to tell."""


@contextmanager
def engine_errors() -> Iterator[None]:
    """Raise whatever the engine raises inside as an `EngineError`, with what went wrong and the root of it."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise EngineError(_telling(error)) from error


@contextmanager
def sink_failures(sink: str, doing: str) -> Iterator[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    try:
        yield
    except PenstockError:
        raise
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise sink_failure(sink, doing, error) from error


def sink_failure(sink: str, doing: str, error: BaseException) -> PenstockError:
    """The error of this sink that `error` amounts to."""
    summary = f"sink {sink}: {doing}: {failures.first_line(error)}"
    if _UNSUPPORTED in str(error):
        return MissingError(
            "SINK_TABLE_UNSUPPORTED",
            summary,
            hint="drop the feature from the table, or write to another table",
        )
    if is_conflict(error):
        return TransientError(
            "SINK_COMMIT_CONFLICT", summary, hint="other writers commit to this table at the same time"
        )
    if is_passing(error):
        return TransientError("SINK_UNAVAILABLE", summary)
    return failures.sink_failed(summary, error)


def is_conflict(error: BaseException) -> bool:
    """Whether another writer's commit came in between."""
    if isinstance(error, EngineError):
        return _CONFLICT.search(str(error)) is not None
    return isinstance(error, CommitFailedError) and _UNSUPPORTED not in str(error)


def is_passing(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a time-out, throttling."""
    if isinstance(error, EngineError) and error.__cause__ is not None and is_passing(error.__cause__):
        return True
    if failures.is_passing(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return isinstance(error, OSError | DeltaError | EngineError) and _PASSING.search(str(error)) is not None


def _telling(error: Exception) -> str:
    """What happened, out of a text that goes on with a stack of Java calls."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line.removeprefix(": ") for line in lines if line and not line.startswith("An error occurred while")]
    roots = [line for line in lines if line.startswith("Caused by: ")]
    return "; ".join([*told[:1], *roots[-1:]]) or type(error).__name__


def table_changed(sink: str) -> TransientError:
    """The error for a table that is not any more the one for which rows were staged."""
    return TransientError(
        "SINK_TABLE_CHANGED",
        f"sink {sink}: the table was changed since the rows were staged",
        hint="the batch is staged again, for the table as it is now",
    )
