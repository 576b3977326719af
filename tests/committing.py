"""What tests ask of a sink around its commit, in the words of a run."""

from __future__ import annotations

from penstock.contracts import Sink
from penstock.model import BatchToken, Position
from penstock.sinks.commit import commit, is_committed

__all__ = ["commit", "holds", "last_commit", "position_at"]


def holds(sink: Sink, token: BatchToken) -> bool:
    """Whether the target has the batch. Raises where the two contradict each other."""
    return is_committed(sink, sink.position(), token)


def last_commit(sink: Sink) -> BatchToken | None:
    """The newest batch in the target, whichever query wrote it."""
    position = sink.position()
    return position.last if position is not None and position.last.batch_id >= 0 else None


def position_at(token: BatchToken | None) -> Position | None:
    """The position of a target whose only commit is this batch."""
    return Position.first(token) if token is not None else None
