"""What Arrow and the file system raise, as errors that say whether to try again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import PenstockError, TerminalError, TransientError

_PASSING_ERRNO = frozenset({errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.EMFILE, errno.ENFILE})


@contextmanager
def sink_failures(sink: str, doing: str) -> Iterator[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    try:
        yield
    except PenstockError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise sink_failure(sink, doing, error) from error


def sink_failure(sink: str, doing: str, error: BaseException) -> PenstockError:
    """The error of this sink that `error` amounts to."""
    summary = f"sink {sink}: {doing}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    if is_passing(error):
        return TransientError("SINK_UNAVAILABLE", summary)
    hint = "free some space and start again" if getattr(error, "errno", None) == errno.ENOSPC else None
    return TerminalError("SINK_FAILED", summary, hint=hint)


def is_passing(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a network file system that is away, too many open files."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO
