"""Durations and sizes as people write them: `10 seconds`, `500 ms`, `10 MiB`."""

from __future__ import annotations

import re
from datetime import timedelta

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
_BYTES = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
LONGEST = timedelta(days=36_500)
LARGEST = 2**60
"""Bytes: 1 EiB."""


def parse_duration(text: str) -> timedelta:
    """A duration with its unit: `500 ms`, `10 seconds`, `2 minutes`, `1 hour`, `1 day`."""
    number, unit = _split(text, _SECONDS, "ms, seconds, minutes, hours or days", "10 seconds")
    if number * unit > LONGEST.total_seconds():
        raise ValueError("must be at most 36,500 days")
    duration = timedelta(seconds=number * unit)
    if not duration:
        raise ValueError("must be longer than nothing")
    return duration


def parse_size(text: str) -> int:
    """A size in bytes: `512 KiB`, `10 MiB`, `1 GB`, or a plain number of bytes."""
    if text.strip().isdecimal():
        return int(text)
    number, unit = _split(text, _BYTES, "bytes, KiB, MiB, GiB, KB, MB or GB", "10 MiB")
    return int(min(number * unit, LARGEST + 1))


def show_duration(duration: timedelta) -> str:
    """A duration in the largest unit that gives a whole number."""
    milliseconds = round(duration.total_seconds() * 1000)
    for size, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        count, rest = divmod(milliseconds, size)
        if count and not rest:
            return f"{count} {name}" + ("s" if count != 1 else "")
    return f"{milliseconds} ms"


def _split(text: str, units: dict[str, float] | dict[str, int], names: str, example: str) -> tuple[float, float]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a number and a unit, such as {example}")
    number, unit = found.groups()
    if not unit:
        raise ValueError(f"the unit is missing: write {names}")
    if unit.lower() not in units:
        raise ValueError(f'"{unit}" is not a unit: write {names}')
    return float(number), units[unit.lower()]
