"""What stands still: a batch that began and never committed."""

from __future__ import annotations

from datetime import timedelta

from penstock.config import PostgresSinkConfig, SinkConfig
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.wording import span

_TIMES_LONGER = 4
"""How many times as long as the longest of the last batches one may take."""


def batch_stuck(evidence: Evidence) -> Cause | None:
    """A batch is open for longer than any should be. Of a run that is gone that is told by itself."""
    opened, since, state = evidence.checkpoint.open_batch, evidence.checkpoint.begun_at, evidence.run.state
    if opened is None or since is None or state not in ("running", "none"):
        return None
    age, longest = evidence.age(since), _longest(evidence)
    if age <= longest:
        return None
    done = evidence.checkpoint.committed
    told = [
        f"batch {opened} began {span(age.total_seconds())} ago; "
        + ("none was ever committed" if done is None else f"the last one committed is {done}"),
    ]
    if evidence.batches:
        took = span(evidence.typical_seconds)
        told.append(f"the batches before took {took}; none should take longer than {span(longest.total_seconds())}")
    if state == "running":
        told += _of_live_run(evidence)
        change = _free(evidence)
    else:
        told.append("no run has the checkpoint")
        change = f"penstock run {evidence.file}: the batch is run again with the same offsets, and nothing comes twice"
    return Cause("BATCH_STUCK", 1.0, f"batch {opened} began and has not committed", tuple(told), change)


def _longest(evidence: Evidence) -> timedelta:
    seen = max((batch.seconds for batch in evidence.batches), default=0.0)
    return max(evidence.config.flow.max_batch, timedelta(seconds=_TIMES_LONGER * seen))


def _phase(evidence: Evidence) -> str | None:
    """What the open batch is at, where the run tells it."""
    return getattr(evidence.run.note.facts, "phase", None) if evidence.run.note is not None else None


def _waiting_for(evidence: Evidence) -> str | None:
    """The fault that the run waits out."""
    doing = evidence.run.note.facts.doing if evidence.run.note is not None else ""
    return doing.rpartition(" ")[2] if doing.startswith("waiting") else None


def _of_live_run(evidence: Evidence) -> list[str]:
    told = []
    if (phase := _phase(evidence)) is not None:
        told.append(f"it is in the phase {phase}")
    if (code := _waiting_for(evidence)) is not None:
        summary = next((f": {one.summary}" for one in reversed(evidence.retries) if one.code == code), "")
        told.append(f"{evidence.run.holder} is waiting to try again after {code}{summary}")
    elif evidence.run.holder is not None:
        told.append(f"{evidence.run.holder} has the checkpoint")
    return told


def _free(evidence: Evidence) -> str:
    """What lets a live run go on."""
    if (code := _waiting_for(evidence)) is not None:
        return f"remove the reason for {code}; the run then goes on by itself"
    sink = _sink_of_phase(evidence)
    if isinstance(sink, PostgresSinkConfig):
        return (
            f"in the database, end whoever holds a lock on {sink.table}: SELECT pid, query FROM pg_locks JOIN "
            f"pg_stat_activity USING (pid) WHERE relation = '{sink.table}'::regclass"
        )
    note = evidence.run.note
    process = f"kill -9 {note.pid} on {note.host}" if note is not None else "end its process"
    return f"{process}, then penstock run {evidence.file}: the batch is run again with the same offsets"


def _sink_of_phase(evidence: Evidence) -> SinkConfig | None:
    """The sink that the batch waits for: the one it is at, or the only one."""
    phase, sinks = _phase(evidence), evidence.config.sinks
    if phase is None:
        return sinks[0] if len(sinks) == 1 else None
    return next((sink for sink in sinks if phase == f"commit:{sink.name}"), None)
