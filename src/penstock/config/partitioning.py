"""How an Iceberg table is partitioned, as text: `country`, `days(event_time)`, `bucket(16, id)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config.problems import did_you_mean

_PLAIN = ("years", "months", "days", "hours")
_SIZED = ("bucket", "truncate")
_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^()]+?)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class PartitionTransform:
    """A column and what is made of its values. `size` is the number of buckets, or the width to truncate to."""

    transform: str
    column: str
    size: int | None = None


class PartitionError(ValueError):
    """A text that is no partition transform."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read_partition(text: str) -> PartitionTransform:
    """What the text says."""
    if "(" not in text:
        return PartitionTransform("identity", text.strip())
    call = _CALL.fullmatch(text)
    if call is None:
        raise PartitionError(f'"{text}" is no partition transform', "write days(event_time) or bucket(16, id)")
    name, size, column = call.group(1).lower(), call.group(2), call.group(3).strip("`")
    if name in _PLAIN and size is None:
        return PartitionTransform(name, column)
    if name in _SIZED and size is not None and int(size) > 0:
        return PartitionTransform(name, column, int(size))
    if name in _SIZED:
        raise PartitionError(f"{name} needs a number above 0 first", f"write {name}(16, {column})")
    if name in _PLAIN:
        raise PartitionError(f"{name} takes a column alone", f"write {name}({column})")
    known = (*_PLAIN, *_SIZED)
    raise PartitionError(f'no partition transform "{name}"; there are {", ".join(known)}', did_you_mean(name, known))
