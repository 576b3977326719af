"""Moments and durations as people give them on the command line, and as they are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import typer

from penstock.ops.wording import roughly


def ago(when: datetime | None) -> str:
    """How long ago something was: `12 s ago`, `3 min ago`, `2 h ago`, `5 days ago`; `-` for never."""
    if when is None:
        return "-"
    return f"{roughly((datetime.now(UTC) - when).total_seconds())} ago"


def duration(text: str, option: str) -> timedelta:
    """The value of an option such as `120s` or `2 minutes`."""
    from penstock.config.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def moment(text: str) -> datetime:
    """An option such as `2026-01-31T08:00:00Z`, `2026-01-31` (that day's beginning in UTC), or `2 hours` (ago)."""
    from penstock.config.durations import parse_duration

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - parse_duration(text.removesuffix("ago"))
        except ValueError:
            raise typer.BadParameter(
                "expected a time such as 2026-01-31T08:00:00Z, a day such as 2026-01-31, or how long ago: 2 hours"
            ) from None
    if found.tzinfo is None and len(text) > len("2026-01-31"):
        raise typer.BadParameter(f"the time has no zone: write {text}Z, or an offset such as +02:00")
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
