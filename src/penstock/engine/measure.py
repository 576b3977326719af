"""What a batch measures: the time of its phases on the driver, and what its slots report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from penstock.engine.work import SlotReport
from penstock.metrics import BatchMetrics
from penstock.metrics.memory import memory_in_use
from penstock.model import BatchToken, TopicPartition
from penstock.registry.exchange import seconds_asked

_MAX_SLOTS = 64
"""Maximum number of slots to report."""
Figure = TypeVar("Figure", int, float)


class BatchTimer:
    """Measures one batch from its creation. `enter` is called when a phase starts."""

    def __init__(self, enter: Callable[[str], None]) -> None:
        self._enter = enter
        self._began, self._started_at, self._asked = time.perf_counter(), datetime.now(UTC), seconds_asked()
        self._phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of the batch; its time counts once it is over."""
        self._enter(name)
        began = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    def metrics(
        self, token: BatchToken, lags: Mapping[TopicPartition, int], reports: Sequence[SlotReport]
    ) -> BatchMetrics:
        """The batch so far, by the slots of its first pass."""
        tasks = {f"task_{phase}": seconds for phase, seconds in added(r.seconds for r in reports).items()}
        return BatchMetrics(
            pipeline=token.pipeline,
            batch_id=token.batch_id,
            finished_at=datetime.now(UTC),
            seconds=time.perf_counter() - self._began,
            rows_in=sum(r.rows_in for r in reports),
            rows_out=sum(r.rows_out for r in reports),
            quarantined=sum(r.quarantined for r in reports),
            bytes_in=sum(r.bytes_in for r in reports),
            slots=sum(1 for r in reports if r.rows_in),
            lag=sum(lags.values()),
            codes=added(r.codes for r in reports),
            counts=added(r.counts for r in reports),
            phases={**self._phases, **tasks, "registry": seconds_asked() - self._asked},
            started_at=self._started_at,
            offsets=sum(len(one) for one in token.ranges),
            pressure=max([memory_in_use(), *(r.pressure for r in reports)]),
            slot_rows=_most(r.rows_in for r in reports),
            slot_rows_out=_most(r.rows_out for r in reports),
            slot_seconds=_most(r.took for r in reports),
            lags=lags,
            ends=token.ends,
        )


def added(figures: Iterable[Mapping[str, Figure]]) -> dict[str, Figure]:
    """The sum of each figure."""
    total: dict[str, Figure] = {}
    for some in figures:
        for name, figure in some.items():
            total[name] = total.get(name, 0) + figure
    return total


def _most(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    return tuple(sorted((one for one in figures if one), reverse=True)[:_MAX_SLOTS])
