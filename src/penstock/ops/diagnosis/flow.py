"""What sets the pace: a cap that is too low, a trigger that is too long, or simply more input than can be processed."""

from __future__ import annotations

import math

from penstock.config import reveal, show_duration
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.diagnosis.figures import middle
from penstock.ops.wording import percent, span

_MOSTLY = 0.8
_FAR_BELOW = 4
"""How many times shorter than the aim batches are whose cap is too low."""
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
        f"batches may take no more than {cap:,} offsets, and are over in {span(took)}",
        (
            f"{percent(full)} of the last batches took all that {key} allows: {cap:,} offsets",
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
        f"a batch starts every {show_duration(every)} and takes {span(took)}: in between, records wait",
        (
            f"{evidence.last_batches}: {span(waited)} of {span(evidence.cycle)} passed between them ({percent(share)})",
            f"{evidence.lag:,} offsets wait; a batch takes {middle(b.offsets for b in evidence.batches):,.0f}",
        ),
        f"remove trigger.every ({show_duration(every)}): a batch then starts when the one before has ended",
    )


def input_above_rate(evidence: Evidence) -> Cause | None:
    """More comes in than is processed. The general cause: a more specific one, where there is one, explains it."""
    came, done = evidence.input_rate, evidence.processing_rate
    if not evidence.behind or not came or not done or came < _ABOVE * done:
        return None
    first, last = evidence.batches[0], evidence.batches[-1]
    return Cause(
        "INPUT_ABOVE_RATE",
        0.3,
        f"{came:,.0f} offsets a second come in, and {done:,.0f} are processed",
        (
            f"{evidence.last_batches}: the offsets that wait went from {first.lag:,} to {last.lag:,}",
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
