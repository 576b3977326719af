"""Every error a user can meet: a code that stays, a summary, facts, and the way out.

The class alone decides what follows: whether a run retries (`Transient`) and which exit code the command
line gives. Errors raised inside a Spark task reach the driver as text; `to_wire` and `from_wire` carry
them through it whole. Such a text holds words of others too, of a record or a database: what counts is signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

_WIRE = re.compile(r"PENSTOCK-ERROR<([A-Za-z0-9+/=]+):([0-9a-f]{64})>")


@cache
def wire_key() -> bytes:
    """The key by which this process knows errors of its own tasks. A task is sent it, with what else it needs."""
    return secrets.token_bytes(32)


class PenstockError(Exception):
    """What and where, both sides of the fact, what to do."""

    exit_code: ClassVar[int] = 4

    def __init__(
        self,
        code: str,
        summary: str,
        *,
        context: Mapping[str, object] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, summary)
        self.code = code
        self.summary = summary
        self.context = {name: str(value) for name, value in (context or {}).items()}
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.code} {self.summary}"]
        lines += [f"  {name}: {value}" for name, value in self.context.items()]
        if self.hint:
            lines += [f"  {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)

    @property
    def line(self) -> str:
        """What and both sides in one line, without the code and the way out."""
        sides = "; ".join(f"{name}: {value}" for name, value in self.context.items())
        return f"{self.summary} ({sides})" if sides else self.summary

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self).__name__, self.code, self.summary, self.context, self.hint)

    def to_wire(self, key: bytes | None = None) -> str:
        """This error as text that `from_wire` finds again inside a Java stack trace; in a task by the driver's key."""
        body = json.dumps([type(self).__name__, self.code, self.summary, self.context, self.hint])
        text = base64.b64encode(body.encode()).decode()
        return f"PENSTOCK-ERROR<{text}:{_signature(text, key or wire_key())}>"


class DefinitionError(PenstockError):
    """The pipeline file is wrong."""

    exit_code = 2


class MissingError(PenstockError):
    """Something the pipeline needs is not there or not compatible."""

    exit_code = 3


class TerminalError(PenstockError):
    """It cannot go on; trying again changes nothing."""

    exit_code = 4


class TransientError(PenstockError):
    """It may work when tried again."""

    exit_code = 75


def as_missing(error: PenstockError) -> PenstockError:
    """What is away at the start is missing: a run has nothing to go on with, and trying again would hide it."""
    if not isinstance(error, TransientError):
        return error
    return MissingError(error.code, error.summary, context=error.context, hint=error.hint)


@contextmanager
def transient_is_fatal() -> Iterator[None]:
    """Raise what is away as missing."""
    try:
        yield
    except TransientError as error:
        raise as_missing(error) from None


_CLASSES: Mapping[str, type[PenstockError]] = {
    kind.__name__: kind for kind in (DefinitionError, MissingError, TerminalError, TransientError)
}


def _rebuild(kind: str, code: str, summary: str, context: Mapping[str, str], hint: str | None) -> PenstockError:
    return _CLASSES.get(kind, PenstockError)(code, summary, context=context, hint=hint)


def from_wire(text: str) -> PenstockError | None:
    """The error that `to_wire` wrote somewhere inside `text` with the key of this process, if there is one."""
    for found in _WIRE.finditer(text):
        if hmac.compare_digest(_signature(found[1], wire_key()), found[2]):
            return _rebuild(*json.loads(base64.b64decode(found[1])))
    return None


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def one_line(error: Exception) -> str:
    """Any error in one line: by its code, or by its type."""
    if isinstance(error, PenstockError):
        return f"{error.code} {error.line}"
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def as_penstock_error(error: Exception) -> PenstockError:
    """Any exception as one of Penstock's errors. One that nobody expected is a fault of Penstock, and says so."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        return MissingError("FILE_UNUSABLE", f"{error.filename}: {error.strerror}", hint="--debug shows where")
    return PenstockError(
        "UNEXPECTED",
        f"{type(error).__name__}: {error}",
        hint="this is a bug in Penstock; run `penstock --debug ...` and report its output",
    )


def back_off(attempt: int, first: float, longest: float) -> float:
    """The seconds to wait after failed attempt number `attempt`, counted from 1: doubled each time, up to `longest`."""
    return min(first * 2.0 ** min(attempt - 1, 30), longest)
