"""Causes of a pipeline that makes no progress or too little: no run at work, a batch that never commits, a cap that is
too low, a trigger that is too long, or more input than can be processed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from penstock.checkpoint.presence import RunNote
from penstock.config import PostgresSinkConfig, SinkConfig, reveal, show_duration
from penstock.ops.diagnosis.evidence import Cause, Evidence, middle
from penstock.wording import counted, percent, span

_MOSTLY = 0.8
_FAR_BELOW = 4
"""How many times shorter than the target batches with a too low cap are."""
_ABOVE = 1.05
_TASK_PHASES = ("read", "decode", "transform", "stage")


def cap_low(evidence: Evidence) -> Cause | None:
    """Every batch is as large as it may be, is over in no time, and more waits."""
    key, cap = _fixed_cap(evidence)
    if not evidence.behind or cap is None:
        return None
    full = sum(batch.offsets >= 0.9 * cap for batch in evidence.batches) / len(evidence.batches)
    aim, took = evidence.config.flow.target_batch.total_seconds(), evidence.typical_seconds
    if full < _MOSTLY or took * _FAR_BELOW > aim:
        return None
    if key == "source.max_offsets":
        change = f"remove source.max_offsets ({cap}): flow control then sizes the batches"
    else:
        change = f"{key}: {int(cap * aim / max(took, 0.05)):d} (now {cap})"
    return Cause(
        "CAP_LOW",
        0.75,
        f"batches are limited to {cap:,} offsets, and end after {span(took)}",
        (
            f"{percent(full)} of the last batches reached {key}: {cap:,} offsets",
            f"a batch takes {span(took)}; with a backlog it should take {span(aim)}",
            f"{evidence.lag:,} offsets wait: {math.ceil(evidence.lag / cap):,} more batches",
        ),
        change,
    )


def trigger_long(evidence: Evidence) -> Cause | None:
    """While records wait, so does the pipeline, for its trigger."""
    every = evidence.config.trigger.every
    if not evidence.behind or every is None or evidence.config.trigger.available_now:
        return None
    waited = sum(batch.waited for batch in evidence.batches)
    share = waited / evidence.cycle if evidence.cycle else 0.0
    took = evidence.typical_seconds
    if share < 0.5 or took > every.total_seconds():
        return None
    return Cause(
        "TRIGGER_LONG",
        0.5 + 0.4 * share,
        f"a batch starts every {show_duration(every)} and takes {span(took)}: records wait in between",
        (
            f"{evidence.last_batches}: {span(waited)} of {span(evidence.cycle)} passed between them ({percent(share)})",
            f"{evidence.lag:,} offsets wait; a batch takes {middle(b.offsets for b in evidence.batches):,.0f}",
        ),
        f"remove trigger.every ({show_duration(every)}): a batch then starts when the previous one ends",
    )


def input_above_rate(evidence: Evidence) -> Cause | None:
    """More records arrive than are processed. The general cause: a more specific one explains it, if found."""
    came, done = evidence.input_rate, evidence.processing_rate
    if not evidence.behind or not came or not done or came < _ABOVE * done:
        return None
    first, last = evidence.batches[0], evidence.batches[-1]
    return Cause(
        "INPUT_ABOVE_RATE",
        0.3,
        f"{came:,.0f} offsets per second arrive, and {done:,.0f} are processed",
        (
            f"{evidence.last_batches}: lag went from {first.lag:,} to {last.lag:,} offsets",
            *_where_time_goes(evidence),
        ),
        _more_cores(evidence, came / done),
    )


def _fixed_cap(evidence: Evidence) -> tuple[str, int | None]:
    config = evidence.config
    fixed = [source.max_offsets for source in (config.source, *config.sources.values()) if source.max_offsets]
    return ("source.max_offsets", sum(fixed)) if fixed else ("flow.max_offsets", config.flow.max_offsets)


def _where_time_goes(evidence: Evidence) -> list[str]:
    spent = {phase: sum(batch.phases.get(f"task_{phase}", 0.0) for batch in evidence.batches) for phase in _TASK_PHASES}
    total = sum(spent.values())
    if not total:
        return []
    shares = sorted(spent.items(), key=lambda one: -one[1])
    return ["the tasks' time: " + ", ".join(f"{phase} {percent(took / total)}" for phase, took in shares)]


def _more_cores(evidence: Evidence, times: float) -> str:
    cores = evidence.cores or 1
    wanted = max(cores + 1, math.ceil(cores * times * 1.2))
    master = reveal(evidence.config.spark).get("spark.master", "local[*]")
    if master.startswith("local"):
        return f'spark: {{spark.master: "local[{wanted}]"}}, on a machine with {wanted} cores (now {cores})'
    return f"give the Spark job {wanted} cores (now {cores}), such as by spark: {{spark.cores.max: {wanted}}}"


def not_running(evidence: Evidence) -> Cause | None:
    """The last run did not stop cleanly, and none has started since. A clean stop is not a problem."""
    note, state, how = evidence.run.note, evidence.run.state, evidence.run.ended_badly
    if how is None or note is None:
        return None
    if state == "failed":
        change = f"fix the cause of {note.error} (penstock plan {evidence.file} checks for it), then {_go(evidence)}"
    elif state == "killed":
        change = f"{_go(evidence)}: it repairs what the killed run left"
    else:
        change = f"check on {note.host} whether it is alive; if not, {_go(evidence)}"
    return Cause("NOT_RUNNING", 1.0, f"no run is active: {how}", tuple(_last_run_facts(evidence, note)), change)


def idle(evidence: Evidence) -> str | None:
    """For information: since when a cleanly stopped pipeline has not run, and its lag."""
    note = evidence.run.note
    if evidence.run.running or evidence.run.ended_badly is not None:
        return None
    if note is not None and note.ended_at is not None:
        state = f"not running since {_utc(note.ended_at)}, when it stopped"
    elif evidence.checkpoint.begun is None:
        state = "it has not run yet"
    else:
        state = "not running"
    waits = waiting(evidence)
    return f"{state}; {waits}; start it with {_go(evidence)}" if evidence.lag else f"{state}; {waits}"


def waiting(evidence: Evidence) -> str:
    """How much waits, and for how long."""
    if evidence.brokers is None:
        return "the lag is unknown"
    if not evidence.lag:
        return "nothing waits"
    since = evidence.waiting_since
    age = f", the oldest unread record is {span(evidence.age(since).total_seconds())} old" if since is not None else ""
    return f"{counted(evidence.lag, 'offset')} {'waits' if evidence.lag == 1 else 'wait'}{age}"


def _last_run_facts(evidence: Evidence, note: RunNote) -> Iterator[str]:
    when = note.ended_at or note.at
    ended = "ended" if note.ended_at is not None else "was last seen"
    yield f"{note.who} {ended} at {_utc(when)}, {span(evidence.age(when).total_seconds())} ago"
    reason = next((one.summary for one in reversed(evidence.retries) if one.code == note.error), None)
    if reason:
        yield f"{note.error}: {reason}"
    yield waiting(evidence)
    if (opened := evidence.checkpoint.open_batch) is not None:
        done = evidence.checkpoint.committed
        before = "no batch was ever committed" if done is None else f"the last committed batch is {done}"
        yield f"batch {opened} started and has not committed; {before}: it is retried with the same offsets"


def _go(evidence: Evidence) -> str:
    return f"penstock run {evidence.file}"


def _utc(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


_TIMES_LONGER = 4
"""How many times longer than the longest recent batch a batch may take."""


def batch_stuck(evidence: Evidence) -> Cause | None:
    """A batch has been open for too long. A dead run is a separate cause."""
    opened, since, state = evidence.checkpoint.open_batch, evidence.checkpoint.begun_at, evidence.run.state
    if opened is None or since is None or state not in ("running", "none"):
        return None
    age, longest = evidence.age(since), _longest(evidence)
    if age <= longest:
        return None
    done = evidence.checkpoint.committed
    facts = [
        f"batch {opened} started {span(age.total_seconds())} ago; "
        + ("no batch was ever committed" if done is None else f"the last committed batch is {done}"),
    ]
    if evidence.batches:
        took = span(evidence.typical_seconds)
        facts.append(f"earlier batches took {took}; none should take longer than {span(longest.total_seconds())}")
    if state == "running":
        facts += _of_live_run(evidence)
        change = _free(evidence)
    else:
        facts.append("no run has the checkpoint")
        change = f"penstock run {evidence.file}: the batch is retried with the same offsets, without duplicates"
    return Cause("BATCH_STUCK", 1.0, f"batch {opened} started and has not committed", tuple(facts), change)


def _longest(evidence: Evidence) -> timedelta:
    seen = max((batch.seconds for batch in evidence.batches), default=0.0)
    return max(evidence.config.flow.max_batch, timedelta(seconds=_TIMES_LONGER * seen))


def _phase(evidence: Evidence) -> str | None:
    """The phase of the open batch, if the run reports it."""
    return getattr(evidence.run.note.facts, "phase", None) if evidence.run.note is not None else None


def _waiting_for(evidence: Evidence) -> str | None:
    """The fault that the run waits out."""
    doing = evidence.run.note.facts.doing if evidence.run.note is not None else ""
    return doing.rpartition(" ")[2] if doing.startswith("waiting") else None


def _of_live_run(evidence: Evidence) -> list[str]:
    facts = []
    if (phase := _phase(evidence)) is not None:
        facts.append(f"it is in the phase {phase}")
    if (code := _waiting_for(evidence)) is not None:
        summary = next((f": {one.summary}" for one in reversed(evidence.retries) if one.code == code), "")
        facts.append(f"{evidence.run.holder} is waiting to retry after {code}{summary}")
    elif evidence.run.holder is not None:
        facts.append(f"{evidence.run.holder} has the checkpoint")
    return facts


def _free(evidence: Evidence) -> str:
    """What lets a live run continue."""
    if (code := _waiting_for(evidence)) is not None:
        return f"fix the cause of {code}; the run then continues by itself"
    sink = _sink_of_phase(evidence)
    if isinstance(sink, PostgresSinkConfig):
        return (
            f"in the database, end the session that holds a lock on {sink.table}: SELECT pid, query FROM pg_locks JOIN "
            f"pg_stat_activity USING (pid) WHERE relation = '{sink.table}'::regclass"
        )
    note = evidence.run.note
    process = f"kill -9 {note.pid} on {note.host}" if note is not None else "stop its process"
    return f"{process}, then penstock run {evidence.file}: the batch is retried with the same offsets"


def _sink_of_phase(evidence: Evidence) -> SinkConfig | None:
    """The sink that the batch waits for: the one it is at, or the only one."""
    phase, sinks = _phase(evidence), evidence.config.sinks
    if phase is None:
        return sinks[0] if len(sinks) == 1 else None
    return next((sink for sink in sinks if phase == f"commit:{sink.name}"), None)
