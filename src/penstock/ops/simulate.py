"""A pipeline on paper: what one of a known cost would do at a rate that this machine cannot produce.

The cost of a batch on one core comes from the history of the pipeline's runs. A config, a request and that cost enter;
the simulated run leaves, also as a few rows, with its catch-up time and the cores that it needs. Pure: no clock, no
broker, no JVM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from statistics import median
from typing import Any

from penstock.config import KafkaSinkConfig, PipelineConfig, flows, remembers
from penstock.flow.controller import settled
from penstock.flow.cost import MOST_OFFSETS, Cost, Observed, line_through, telling
from penstock.flow.simulation import Arrivals, Burst, Control, Simulated, Step, Work, adaptive, fixed, simulate
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, RunStarted
from penstock.supervision.flow_control import observed

_MOST_BATCHES = 1000
_APART = 6.0
"""By how much batch sizes must differ to separate a fixed cost from the cost per offset."""


@dataclass(frozen=True)
class Measured:
    """The cost of a batch as it was measured, and on what."""

    fixed: float
    """Fixed seconds per batch."""
    per_offset: float
    """CPU seconds per offset."""
    batches: int
    first: datetime
    last: datetime
    cores: int
    partitions: int | None
    largest: int
    """The offsets of the largest batch."""
    apart: bool
    """Whether batches of several sizes allowed separating the two parts."""
    record_bytes: float


def measure(entries: Iterable[Entry]) -> Measured | None:
    """What the batches say that were run on as many cores as the last one; none where there are none.

    Flow control asks what the next batch costs, and trusts the newest ones. Here large batches are foreseen, maybe from
    the history of a stream that keeps up: so all of them count, and the large ones give the cost of a row.
    """
    runs = list(_with_cores(entries))
    cores, partitions = runs[-1][1:] if runs else (1, None)
    same = [batch for batch, had, _ in runs[-_MOST_BATCHES:] if had == cores and telling([observed(batch)])]
    if not same:
        return None
    cost, apart = _fit_cost([(max(1.0, one.offsets * _busiest(one, cores)), one.seconds) for one in same])
    offsets = [one.offsets for one in same]
    return Measured(
        fixed=cost.fixed,
        per_offset=cost.per_offset,
        batches=len(same),
        first=same[0].finished_at,
        last=same[-1].finished_at,
        cores=cores,
        partitions=partitions,
        largest=max(offsets),
        apart=apart,
        record_bytes=sum(one.bytes_in for one in same) / sum(offsets),
    )


def _fit_cost(seen: Sequence[tuple[float, float]]) -> tuple[Cost, bool]:
    """The line through a large batch and a small one as they usually are, and whether there were both.

    Of each batch the offsets of its busiest core, which is at work as long as the batch is, and its seconds.
    """
    most = max(offsets for offsets, _ in seen)
    large = _usual([one for one in seen if one[0] >= most / 2])
    small = [one for one in seen if one[0] <= most / _APART]
    cost, _ = line_through([large, _usual(small)] if small else [large])
    if small and cost.per_offset > 0:
        return cost, True
    return Cost(0.0, large.seconds / large.offsets), False


def _usual(batches: Sequence[tuple[float, float]]) -> Observed:
    """The median of both: a hiccup or a first batch does not move it."""
    offsets = round(median(offsets for offsets, _ in batches))
    return Observed(0, offsets, offsets, median(seconds for _, seconds in batches), 0, 0, 0)


def _with_cores(entries: Iterable[Entry]) -> Iterator[tuple[BatchMetrics, int, int | None]]:
    run = RunStarted()
    for entry in entries:
        match entry.fact:
            case RunStarted():
                run = entry.fact
            case BatchMetrics() as batch:
                yield batch, run.cores or max(1, batch.slots), run.partitions


def _busiest(batch: BatchMetrics, cores: int) -> float:
    """The share of the rows that the busiest core had."""
    if (total := sum(batch.slot_rows)) > 0:
        return max(1 / cores, max(batch.slot_rows) / total)
    return 1 / max(1, min(cores, batch.slots or cores))


_ROWS = 16
_ALIKE = 0.1


@dataclass(frozen=True)
class Row:
    """A stretch of the run: the most that waited in it, and its last batch."""

    until: float
    backlog: float
    rate: float
    batch: Step | None

    def like(self, other: Row) -> bool:
        """Whether nothing happened in between."""
        return (self.batch is None) == (other.batch is None) and all(
            abs(one - two) <= _ALIKE * max(one, two) for one, two in zip(self._numbers, other._numbers, strict=True)
        )

    @property
    def _numbers(self) -> tuple[float, ...]:
        batch = (self.batch.batch.cap, self.batch.batch.offsets) if self.batch else ()
        return (self.backlog, self.rate, *batch)


def rows_of(run: Simulated, seconds: float) -> list[Row]:
    """Split into a few rows, with equal neighbours merged."""
    for count in (60, 30, 20):
        if len(rows := _joined(_stretches(run, seconds, count))) <= _ROWS:
            return rows
    return _stretches(run, seconds, _ROWS)


def heights(run: Simulated, seconds: float) -> Iterator[tuple[float, float]]:
    """When the backlog was at a height, and how much waited: just before each commit, and where a burst ends."""
    yield 0.0, run.waiting
    done = 0
    for step in run.steps:
        if step.end <= seconds:
            yield step.end, run.waiting + run.arrivals.until(step.end) - done
        done += step.batch.offsets
    for burst in run.arrivals.bursts:
        end = min(burst.start + burst.seconds, seconds)
        yield end, run.backlog(end)


def _joined(rows: list[Row]) -> list[Row]:
    joined: list[tuple[Row, Row]] = []
    for row in rows:
        first = joined.pop()[0] if joined and joined[-1][0].like(row) else row
        joined.append((first, row))
    return [last for _, last in joined]


def _stretches(run: Simulated, seconds: float, count: int) -> list[Row]:
    length = seconds / count
    highest = [0.0] * count
    for time, waits in heights(run, seconds):
        at = min(count - 1, max(0, math.ceil(time / length) - 1))
        highest[at] = max(highest[at], waits)
    last: dict[int, Step] = {min(count - 1, int(step.start / length)): step for step in run.steps}
    found, came, step = list[Row](), run.arrivals.until, None
    for at in range(count):
        end, step = (at + 1) * length, last.get(at, step)
        rate = (came(end) - came(end - length)) / length
        found.append(Row(end, max(highest[at], run.backlog(end)), rate, step))
    return found


_MOST_CORES = 100_000


@dataclass(frozen=True)
class SimulationRequest:
    """What to simulate. Rates are records a second, times are seconds."""

    rate: float
    seconds: float
    cores: int
    partitions: int
    cost: Cost
    """The cost per offset is for one core."""
    bursts: tuple[Burst, ...] = ()
    backlog: float = 0.0
    within: float = 600.0
    """The target time to catch up."""
    hot: float | None = None
    """The share of the records in one partition."""
    whole: bool = False
    """Whether each partition is read by a single task."""
    record_bytes: float = 0.0

    @property
    def arrivals(self) -> Arrivals:
        """What comes in."""
        return Arrivals(self.rate, self.bursts)

    @property
    def calm(self) -> float:
        """When the last burst is over."""
        return max((one.start + one.seconds for one in self.bursts), default=0.0)

    def work(self, cores: int) -> Work:
        """What a batch costs on this many cores."""
        share = self.hot or 1 / self.partitions
        times = share * (self.partitions - 1) / (1 - share) if self.partitions > 1 else 1.0
        return Work(
            self.cost.fixed,
            self.cost.per_offset,
            cores,
            self.partitions,
            max(1.0, times),
            split=not self.whole,
            record_bytes=self.record_bytes,
        )


@dataclass(frozen=True)
class SimulationReport:
    """What happened on paper."""

    asked: SimulationRequest
    run: Simulated = field(repr=False)
    capacity: float
    """The maximum records per second of these cores, in batches of the target duration."""
    most: float
    """The maximum of any number of cores: infinite unless limited by partitions."""
    caught_up: float | None
    """Seconds from the end of the last burst, or the start, until a batch reads the whole backlog."""
    cores_to_hold: int | None
    cores_to_catch_up: int | None
    useful_cores: int | None
    """More cores than this are useless."""

    @property
    def peak(self) -> tuple[float, float]:
        """The most that waited, and when."""
        return max((waits, time) for time, waits in heights(self.run, self.asked.seconds))

    @cached_property
    def rows(self) -> list[Row]:
        """The run in a few stretches."""
        return rows_of(self.run, self.asked.seconds)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        waits, when = self.peak
        largest = max((step.batch.offsets for step in self.run.steps), default=0)
        return {
            "asked": {**asdict(self.asked), "cost": asdict(self.asked.cost)},
            "capacity": round(self.capacity),
            "holds": self.asked.rate < self.capacity,
            "caught_up_seconds": _rounded(self.caught_up),
            "cores_to_hold": self.cores_to_hold,
            "cores_to_catch_up": self.cores_to_catch_up,
            "useful_cores": self.useful_cores,
            "most_waiting": round(waits),
            "most_waiting_at": _rounded(when),
            "waiting_at_the_end": round(self.run.backlog(self.asked.seconds)),
            "batches": len(self.run.steps),
            "largest_batch_offsets": largest,
            "longest_batch_seconds": _rounded(self.run.longest),
            "series": [
                {
                    "until": _rounded(row.until),
                    "rate": round(row.rate),
                    "backlog": round(row.backlog),
                    "cap": row.batch.batch.cap if row.batch else None,
                    "offsets": row.batch.batch.offsets if row.batch else None,
                    "seconds": _rounded(row.batch.batch.seconds) if row.batch else None,
                }
                for row in self.rows
            ],
            "decisions": [
                {
                    "at": _rounded(step.start),
                    "cap": step.batch.cap,
                    "reason": step.decision.reason,
                    "text": step.decision.text,
                }
                for step in [*self.run.steps[:1], *self.run.changes]
            ],
        }


def simulate_pipeline(config: PipelineConfig, asked: SimulationRequest) -> SimulationReport:
    """Run it on paper, and work out how many cores it takes."""
    run = simulate(
        asked.work(asked.cores),
        asked.arrivals,
        _control(config, asked.cores),
        asked.seconds,
        waiting=asked.backlog,
        trigger=_trigger(config),
    )
    useful = asked.partitions if asked.whole else None
    most = capacity(config, replace(asked, cores=useful)) if useful else math.inf
    return SimulationReport(
        asked,
        run,
        carried := capacity(config, asked),
        most,
        _caught_up(run, asked.calm) if asked.rate < carried else None,
        _cores(config, asked, asked.rate),
        _cores(config, asked, _needed(asked)),
        useful,
    )


def capacity(config: PipelineConfig, asked: SimulationRequest) -> float:
    """Records a second at best: batches that are as large as flow control, or the file's own cap, makes them."""
    work = asked.work(asked.cores)
    cost = Cost(work.fixed, work.per_offset * work.busiest)
    offsets = fixed_cap(config) or settled(config.flow, cost, asked.cores, asked.record_bytes)
    return offsets / max(cost.of(offsets), _trigger(config))


def fixed_cap(config: PipelineConfig) -> int | None:
    """The cap that the file gives, over all its sources; none where flow control sets it."""
    if config.adaptive:
        return None
    caps = [one.max_offsets for one in config.sources.values()] or [config.source.max_offsets]
    return sum(cap or MOST_OFFSETS for cap in caps)


def _trigger(config: PipelineConfig) -> float:
    return config.trigger.every.total_seconds() if config.trigger.every else 0.0


def _needed(asked: SimulationRequest) -> float:
    """The rate at which all that came by the end of the last burst, and what comes meanwhile, is done in time."""
    end = asked.calm + asked.within
    came = asked.arrivals.until
    rates = [(came(end) - came(one.start)) / (end - one.start) for one in asked.bursts]
    return max([asked.rate, (asked.backlog + came(end)) / end, *rates])


def _cores(config: PipelineConfig, asked: SimulationRequest, rate: float) -> int | None:
    """The minimum number of cores that handle more than a rate; None if no number does."""
    low, high = 1, asked.partitions if asked.whole else _MOST_CORES
    if capacity(config, replace(asked, cores=high)) <= rate:
        return None
    while low < high:
        middle = (low + high) // 2
        if capacity(config, replace(asked, cores=middle)) > rate:
            high = middle
        else:
            low = middle + 1
    return low


def _control(config: PipelineConfig, cores: int) -> Control:
    cap = fixed_cap(config)
    return adaptive(config.flow, cores) if cap is None else fixed(cap)


def _caught_up(run: Simulated, after: float) -> float | None:
    return next((step.end - after for step in run.steps if step.start >= after and step.batch.backlog == 0), None)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def whole_partitions(config: PipelineConfig) -> str | None:
    """Why one task reads a partition whole, where it does; elsewhere large ones are split among the tasks."""
    for flow in flows(config):
        if flow.sides or any(map(remembers, flow.transforms)):
            return "with stateful steps Spark reads, with one task per partition"
    for sink in config.sinks:
        if isinstance(sink, KafkaSinkConfig) and sink.guarantee == "exactly_once":
            return f"sink {sink.name} writes in transactions, each partition in one slot"
    return None
