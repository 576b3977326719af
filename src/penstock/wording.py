"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, with thousands separated."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def some(things: Sequence[object], limit: int = 8) -> str:
    """The first of many, and how many more there are."""
    rest = len(things) - limit
    return ", ".join(map(str, things[:limit])) + (f" and {rest} more" if rest > 0 else "")


def percent(share: float) -> str:
    """A share of 1."""
    return f"{share * 100:.0f} %"


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(offsets: float) -> str:
    """Offsets a second: `120/s`, `0.4/s`."""
    return f"{offsets:,.0f}/s" if offsets >= 10 else f"{offsets:,.1f}/s"


def roughly(seconds: float) -> str:
    """A length of time in its largest unit."""
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def in_words(seconds: float) -> str:
    """A length of time in a sentence: `45 seconds`, `5 minutes`, `2.5 hours`."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def span(seconds: float) -> str:
    """The same, with one digit where it is short."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 10 else roughly(seconds)


def spell(seconds: float) -> str:
    """A length of time in its two largest units: `3 min 20 s`."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    for unit, size, smaller, part in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86_400, "h", 3600)):
        if whole < size * (24 if unit == "h" else 60) or unit == "d":
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    raise AssertionError("days have no end")
