"""The log as the memory of tokens: how long it lasts, and when a commit without a token would cut it short.

Every tenth commit makes a checkpoint and lets go of log entries older than `delta.logRetentionDuration`. delta-rs 1.6
does so after an OPTIMIZE even when told not to, and Spark cannot be told.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta

from deltalake import DeltaTable

from penstock.sinks.delta.history import commits_of

LOG_RETENTION = timedelta(days=30)
"""How long Delta keeps log entries where the table does not say."""

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?", re.I)


def would_forget(table: DeltaTable, pipeline: str, sink: str) -> str | None:
    """Why nothing but the stream itself may commit now: its newest token is so old that the log may let it go."""
    settings = table.metadata().configuration
    kept = interval_of(settings.get("delta.logRetentionDuration"), LOG_RETENTION)
    newest = next(commits_of(table, pipeline, sink), None)
    if newest is None:
        return None
    committed = table.history(table.version() - newest.version + 1)[-1]["timestamp"] / 1000
    if time.time() - committed < (kept - min(timedelta(days=1), kept / 2)).total_seconds():
        return None
    return "left alone: nothing came for so long that Delta's clean-up of its log could take the newest token"


def interval_of(text: str | None, otherwise: timedelta) -> timedelta:
    """A duration as Delta's settings have it: `interval 7 days`."""
    found = _INTERVAL.fullmatch(text.strip()) if text else None
    return timedelta(**{f"{found[2].lower()}s": int(found[1])}) if found else otherwise
