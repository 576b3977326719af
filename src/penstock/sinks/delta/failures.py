"""What delta-rs, Arrow and the file system raise, as errors that say whether to try again."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError

_PASSING = re.compile(
    r"timed? ?out|throttl|slow ?down|too many requests|connection|temporarily|unavailable|reset by peer"
    r"|\b(429|500|502|503|504)\b",
    re.IGNORECASE,
)
_PASSING_ERRNO = frozenset({errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.EMFILE, errno.ENFILE})


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
    summary = f"sink {sink}: {doing}: {_first_line(error)}"
    if "Unsupported table features" in str(error):
        return MissingError(
            "SINK_TABLE_UNSUPPORTED",
            summary,
            hint="drop the feature from the table, or write to another table",
        )
    if isinstance(error, CommitFailedError):
        return TransientError(
            "SINK_COMMIT_CONFLICT", summary, hint="other writers commit to this table at the same time"
        )
    if is_passing(error):
        return TransientError("SINK_UNAVAILABLE", summary)
    hint = "free some space and start again" if getattr(error, "errno", None) == errno.ENOSPC else None
    return TerminalError("SINK_FAILED", summary, hint=hint)


def is_passing(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a time-out, throttling."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING_ERRNO
    return isinstance(error, OSError | DeltaError) and _PASSING.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
