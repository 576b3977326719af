"""Stretches of time, as Spark takes them and as people read them."""

from __future__ import annotations

from datetime import timedelta


def micros(span: timedelta) -> int:
    """Microseconds."""
    return round(span.total_seconds() * 1_000_000)


def count_millis(span: timedelta) -> int:
    """Milliseconds."""
    return round(span.total_seconds() * 1000)


def millis(span: timedelta) -> str:
    """As Spark reads it in a window or a watermark."""
    return f"{count_millis(span)} milliseconds"


def seconds(span: timedelta) -> str:
    """Seconds, for an INTERVAL."""
    return f"{span.total_seconds():.3f}"


def show(span: timedelta) -> str:
    """For people."""
    millis = count_millis(span)
    for size, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if millis and millis % size == 0:
            count = millis // size
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{millis} ms"
