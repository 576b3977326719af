"""Every error a user can meet: a code that stays, a summary, facts, and the way out.

The class alone decides what follows: whether a run retries (`Transient`) and which exit code the command
line gives. Errors raised inside a Spark task reach the driver as text; `to_wire` and `from_wire` carry
them through it whole.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import ClassVar

_WIRE = re.compile(r"PENSTOCK-ERROR<([A-Za-z0-9+/=]+)>")


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

    def to_wire(self) -> str:
        """This error as text that `from_wire` finds again inside a Java stack trace."""
        body = json.dumps([type(self).__name__, self.code, self.summary, self.context, self.hint])
        return f"PENSTOCK-ERROR<{base64.b64encode(body.encode()).decode()}>"


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


_CLASSES: Mapping[str, type[PenstockError]] = {
    kind.__name__: kind for kind in (DefinitionError, MissingError, TerminalError, TransientError)
}


def _rebuild(kind: str, code: str, summary: str, context: Mapping[str, str], hint: str | None) -> PenstockError:
    return _CLASSES.get(kind, PenstockError)(code, summary, context=context, hint=hint)


def from_wire(text: str) -> PenstockError | None:
    """The error that `to_wire` wrote somewhere inside `text`, if there is one."""
    found = _WIRE.search(text)
    if found is None:
        return None
    return _rebuild(*json.loads(base64.b64decode(found.group(1))))
