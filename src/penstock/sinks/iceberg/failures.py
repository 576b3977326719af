"""What catalogs, Spark and the file system raise, as errors that say whether to try again.

The clients share no class of errors, and Spark's may not be imported here: what is not plain by its class is
told by its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.sinks import failures

_PASSING = re.compile(
    r"timed? ?out|throttl|slow ?down|too many requests|connection|connect to|temporarily|unavailable|reset by peer"
    r"|database is locked|SQLITE_BUSY|\b(429|500|502|503|504)\b",
    re.IGNORECASE,
)
_CONFLICT = re.compile(
    r"CommitFailedException|not an ancestor|Cannot use branch \(does not exist\)|(Ref|Branch) does not exist",
    re.IGNORECASE,
)


@contextmanager
def sink_failures(sink: str, doing: str, *, at_start: bool = False) -> Iterator[None]:
    """Raise what goes wrong inside as an error of this sink; `doing` says what was under way."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise sink_failure(sink, doing, error, at_start=at_start) from error


def sink_failure(sink: str, doing: str, error: BaseException, *, at_start: bool = False) -> PenstockError:
    """The error of this sink that `error` amounts to. What is not there `at_start` has to be put right first."""
    told = _told(error)
    summary = f"sink {sink}: {doing}: {told[0]}"
    if isinstance(error, NotInstalledError | ImportError):
        return MissingError("SINK_CATALOG_UNSUPPORTED", summary, hint="install what the catalog needs")
    if isinstance(error, UnauthorizedError | ForbiddenError):
        return MissingError("SINK_CATALOG_REFUSED", summary, hint="check the catalog's credentials and rights")
    if is_conflict(error):
        return TransientError(
            "SINK_COMMIT_CONFLICT", summary, hint="other writers commit to this table at the same time"
        )
    if is_passing(error):
        return MissingError("SINK_UNAVAILABLE", summary) if at_start else TransientError("SINK_UNAVAILABLE", summary)
    return failures.sink_failed(summary, error, {"cause": told[-1]} if len(told) > 1 else None)


def is_conflict(error: BaseException) -> bool:
    """Whether another writer got in between."""
    return isinstance(error, CommitFailedException) or _CONFLICT.search(" ".join(_told(error))) is not None


def is_passing(error: BaseException) -> bool:
    """Whether the cause may go away by itself: a connection, a time-out, throttling."""
    if isinstance(error, CommitStateUnknownException | ServiceUnavailableError | ServerError | TooManyRequestsError):
        return True
    if failures.is_passing(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return _PASSING.search(" ".join(_told(error))) is not None


def _told(error: BaseException) -> list[str]:
    """What happened and what caused it, out of a text that may go on with stacks of Java calls."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line.removeprefix(": ") for line in lines if line and not line.startswith("An error occurred while")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return [*(said[:1] or [type(error).__name__]), *causes]
