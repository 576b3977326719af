"""A run tells others of itself, beside its checkpoint, and hears them ask it to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.assembly.build import Pipeline
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.engine.listener import BatchDone, BatchPhase, Event, Listener, Retrying, Stalled, Started, Stopping
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError


@contextmanager
def heartbeat(pipeline: Pipeline, stop: StopRequest, listener: Listener) -> Iterator[Listener]:
    """The listener of the run, which also writes down what it hears. A stop asked for beside the checkpoint is one."""
    presence = Presence(pipeline.config.checkpoint, pipeline.storage)
    facts = RunFacts(pipeline=pipeline.config.name, lane=pipeline.lane.lane)
    presence.begin(facts)

    def listen(event: Event) -> None:
        nonlocal facts
        heard = _after(facts, event)
        if heard != facts:
            facts = heard
            # A phase is over soon: it is written with the next beat.
            presence.beat(facts, now=not isinstance(event, BatchPhase))
        listener(event)

    error: str | None = "INTERRUPTED"
    try:
        with presence.heartbeat(stop.ask):
            yield listen
        error = None
    except PenstockError as fault:
        error = fault.code
        raise
    finally:
        presence.end(error)


def _after(facts: RunFacts, event: Event) -> RunFacts:
    match event:
        case Started():
            return replace(facts, doing="running")
        case Retrying():
            return replace(facts, doing=f"waiting to try again: {event.error.code}", stalled=None)
        case Stalled(text):
            return replace(facts, stalled=text)
        case Stopping():
            return replace(facts, doing="stopping")
        case BatchPhase(_, phase):
            return replace(facts, phase=phase)
        case BatchDone(metrics):
            return replace(
                facts,
                phase=None,
                stalled=None,
                doing=facts.doing if facts.doing == "stopping" else "running",
                batches=facts.batches + 1,
                batch_id=metrics.batch_id,
                batch_at=metrics.finished_at.isoformat(),
                batch_seconds=round(metrics.seconds, 3),
                rows_in=metrics.rows_in,
                rows_out=metrics.rows_out,
                quarantined=metrics.quarantined,
                lag=metrics.lag,
            )
    return facts
