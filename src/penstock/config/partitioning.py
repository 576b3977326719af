"""`partition_by` of an Iceberg table, as people write it: `country`, `days(event_time)`, `bucket(16, id)`, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CALL = re.compile(r"^\s*(\w+)\s*\((.*)\)\s*$", re.DOTALL)
_TIMES = {name: name.removesuffix("s") for name in ("years", "months", "days", "hours", "year", "month", "day", "hour")}
_SIZED = {"bucket": "the number of buckets", "truncate": "the width"}


@dataclass(frozen=True, slots=True)
class PartitionText:
    """One entry: the column, and what is done to its value (`identity`, `day`, `bucket`, ...)."""

    column: str
    transform: str = "identity"
    size: int | None = None
    """The number of buckets, or the width of a truncation."""

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        if self.size is None:
            return f"{self.transform}s({self.column})"
        return f"{self.transform}({self.size}, {self.column})"


def parse_partition(text: str) -> PartitionText:
    """The entry that `text` stands for. Raises `ValueError` with what is wrong and what would be right."""
    call = _CALL.match(text)
    if call is None:
        column = text.strip()
        if not column or "(" in column or ")" in column:
            raise ValueError(f'"{text}" is neither a column nor a transform such as days(event_time)')
        return PartitionText(column)
    name, inside = call.group(1).lower(), [part.strip() for part in call.group(2).split(",")]
    if name in _TIMES:
        if len(inside) != 1 or not inside[0]:
            raise ValueError(f'"{text}": {name} takes one column, as in {name}(event_time)')
        return PartitionText(inside[0], _TIMES[name])
    if name in _SIZED:
        return _sized(text, name, inside)
    known = "years, months, days, hours, bucket, truncate"
    raise ValueError(f'"{text}": there is no transform "{name}"; there are {known}')


def _sized(text: str, name: str, inside: list[str]) -> PartitionText:
    if len(inside) != 2 or not inside[1]:
        raise ValueError(f'"{text}": {name} takes {_SIZED[name]} and a column, as in {name}(16, id)')
    if not re.fullmatch(r"[0-9]+", inside[0]) or not 0 < int(inside[0]) < 2**31:
        raise ValueError(f'"{text}": {_SIZED[name]} is a whole number above zero, not "{inside[0]}"')
    return PartitionText(inside[1], name, int(inside[0]))
