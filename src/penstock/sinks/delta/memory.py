"""How long the log remembers a position, and when a commit by anybody else would cut that short.

Every tenth commit makes a checkpoint and lets go of log entries older than `delta.logRetentionDuration`. delta-rs 1.6
does so after an OPTIMIZE even where it is turned off, and Spark always does. A position is then left in the transaction
ids alone; versions before 0.8 did not write these, and Spark cannot write all of them.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta

from deltalake import DeltaTable

from penstock.sinks.delta.history import own_commits
from penstock.sinks.delta.transactions import position_of, transactions_at
from penstock.sinks.files import TableFolder

LOG_RETENTION = timedelta(days=30)
"""How long Delta keeps log entries where the table does not say."""

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?", re.I)


def position_at_risk(table: DeltaTable, folder: TableFolder, pipeline: str, sink: str) -> str | None:
    """Why nothing but the stream itself may commit now: its position stands only in an entry that may be removed."""
    settings = table.metadata().configuration
    kept = interval_of(settings.get("delta.logRetentionDuration"), LOG_RETENTION)
    newest = next(own_commits(table, pipeline, sink), None)
    if newest is None:
        return None
    committed = table.history(table.version() - newest.version + 1)[-1]["timestamp"] / 1000
    if time.time() - committed < (kept - min(timedelta(days=1), kept / 2)).total_seconds():
        return None
    noted = position_of(transactions_at(folder, table.version()) or {}, pipeline, sink)
    if noted is not None and newest.position.number and noted.next == newest.position.next:
        return None
    return "left alone: nothing came for so long that Delta's clean-up of its log could remove the position"


def interval_of(text: str | None, otherwise: timedelta) -> timedelta:
    """A duration as Delta's settings have it: `interval 7 days`."""
    found = _INTERVAL.fullmatch(text.strip()) if text else None
    return timedelta(**{f"{found[2].lower()}s": int(found[1])}) if found else otherwise
