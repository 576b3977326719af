"""What attempts staged that do not count is removed: at once, and once more when they have surely ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.orphans import Orphans
from penstock.errors import TransientError
from penstock.model import BatchToken, Manifest


@dataclass
class Books:
    others: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)

    def were_others(self, stages: Collection[int]) -> bool:
        return not self.others.isdisjoint(stages)

    def still_run(self, stages: Collection[int]) -> bool:
        return not self.running.isdisjoint(stages)


@dataclass
class Discarding:
    error: Exception | None = None
    seen: list[int] = field(default_factory=list)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        self.seen.append(token.batch_id)
        if self.error is not None:
            raise self.error


def token(batch_id: int) -> BatchToken:
    return BatchToken("orders", "q", batch_id, ())


def test_orphans_without_other_attempts_nothing_is_looked_for() -> None:
    sink: Any = Discarding()
    orphans = Orphans(Books())
    assert not orphans.after(token(0), [(sink, [])], {1, 2})
    orphans.finish()
    assert sink.seen == []


def test_orphans_of_a_batch_are_removed_at_once_and_again_later() -> None:
    sink: Any = Discarding()
    now = [0.0]
    orphans = Orphans(Books(others={2}), clock=lambda: now[0])
    assert orphans.after(token(0), [(sink, [])], {1, 2})
    assert sink.seen == [0]
    orphans.after(token(1), [(sink, [])], {3})
    assert sink.seen == [0]
    now[0] = 11.0
    orphans.after(token(2), [(sink, [])], {4})
    assert sink.seen == [0, 0]
    orphans.finish()
    assert sink.seen == [0, 0]


def test_orphans_at_the_end_wait_for_what_still_runs_but_not_for_ever() -> None:
    sink: Any = Discarding()
    now = [0.0]

    def clock() -> float:
        now[0] += 4.0
        return now[0]

    orphans = Orphans(Books(others={1}, running={1}), clock=clock)
    orphans.after(token(0), [(sink, [])], {1})
    orphans.finish()
    assert sink.seen == [0, 0]


def test_orphans_that_cannot_be_removed_stop_nothing() -> None:
    failing: Any = Discarding(TransientError("SINK_AWAY", "the store does not answer"))
    sink: Any = Discarding()
    Orphans(Books(others={1})).after(token(0), [(failing, []), (sink, [])], {1})
    assert sink.seen == [0]
