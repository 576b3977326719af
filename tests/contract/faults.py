"""What can happen around a commit, put around the one method that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def lose_answer(owner: Any, method: str, *, landed: bool, error: type[Exception] = ConnectionResetError) -> None:
    """The first call of the method ends in an error: after it was done, or before."""
    original, calls = getattr(owner, method), iter([True])

    def losing(*given: Any, **named: Any) -> Any:
        if not next(calls, False):
            return original(*given, **named)
        if landed:
            original(*given, **named)
        raise error("the answer is lost")

    setattr(owner, method, losing)


def overtake(owner: Any, method: str, before: Callable[[], None]) -> None:
    """`before` is called ahead of the first call of the method, once."""
    original, calls = getattr(owner, method), iter([before])

    def overtaken(*given: Any, **named: Any) -> Any:
        next(calls, lambda: None)()
        return original(*given, **named)

    setattr(owner, method, overtaken)
