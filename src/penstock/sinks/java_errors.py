"""The Java exceptions inside what Spark raises, by their classes. Spark itself is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LONGEST_CHAIN = 20


def java_classes(error: BaseException) -> set[str]:
    """The classes of the Java exception that an error stands for and of its causes, and the classes above them."""
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
    """The Java exception that an error of Spark stands for, and its causes; none for any other error."""
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
