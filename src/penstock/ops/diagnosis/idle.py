"""A pipeline at which no run is at work: why its records wait, whatever its batches were like."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from penstock.checkpoint.presence import RunNote
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.wording import counted, span

_ENDED_BADLY = ("failed", "killed", "silent")


def not_running(evidence: Evidence) -> Cause | None:
    """The last run did not stop cleanly, and none has begun since. One that stopped cleanly is no trouble."""
    note, state = evidence.run.note, evidence.run.state
    if state not in _ENDED_BADLY or note is None:
        return None
    if state == "failed":
        how = f"the last run was ended by {note.error}"
        change = (
            f"remove the reason for {note.error} (penstock plan {evidence.file} looks for it), then {_go(evidence)}"
        )
    elif state == "killed":
        how, change = "the last run was killed", f"{_go(evidence)}: it repairs what the killed run left"
    else:
        how = f"{note.who} has not been heard of since {_utc(note.at)}"
        change = f"look on {note.host} whether it lives; where it does not, {_go(evidence)}"
    return Cause("NOT_RUNNING", 1.0, f"no run is at work: {how}", tuple(_told(evidence, note)), change)


def idle(evidence: Evidence) -> str | None:
    """For a reader who may wonder: since when a pipeline that ended cleanly does not run, and what waits meanwhile."""
    note, state = evidence.run.note, evidence.run.state
    if state == "running" or state in _ENDED_BADLY:
        return None
    if note is not None and note.ended_at is not None:
        told = f"not running since {_utc(note.ended_at)}, when it stopped"
    elif evidence.checkpoint.begun is None:
        told = "it has not run yet"
    else:
        told = "not running"
    waits = waiting(evidence)
    return f"{told}; {waits}; start it with {_go(evidence)}" if evidence.lag else f"{told}; {waits}"


def waiting(evidence: Evidence) -> str:
    """How much waits, and for how long."""
    if evidence.brokers is None:
        return "how many offsets wait is not known"
    if not evidence.lag:
        return "nothing waits"
    since = evidence.waiting_since
    age = f", the oldest unread record is {span(evidence.age(since).total_seconds())} old" if since is not None else ""
    return f"{counted(evidence.lag, 'offset')} {'waits' if evidence.lag == 1 else 'wait'}{age}"


def _told(evidence: Evidence, note: RunNote) -> Iterator[str]:
    when = note.ended_at or note.at
    ended = "ended" if note.ended_at is not None else "was last heard of"
    yield f"{note.who} {ended} at {_utc(when)}, {span(evidence.age(when).total_seconds())} ago"
    reason = next((one.summary for one in reversed(evidence.retries) if one.code == note.error), None)
    if reason:
        yield f"{note.error}: {reason}"
    yield waiting(evidence)
    if (opened := evidence.checkpoint.open_batch) is not None:
        done = evidence.checkpoint.committed
        before = "none was ever committed" if done is None else f"the last one committed is {done}"
        yield f"batch {opened} began and has not committed; {before}: it is run again with the same offsets"


def _go(evidence: Evidence) -> str:
    return f"penstock run {evidence.file}"


def _utc(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
