"""How far behind a pipeline is: what all its sinks have committed against the ends of the logs. No JVM.

The sinks' own tokens count, and the checkpoint where a sink keeps none; the consumer group is only held against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from statistics import median_low
from typing import Any

from penstock.assembly.reaching import settings_of
from penstock.checkpoint import Offsets
from penstock.checkpoint.findings import findings_in
from penstock.config import PipelineConfig
from penstock.kafka import Cluster, LogBounds
from penstock.kafka.ages import first_unread
from penstock.metrics.history import history_of
from penstock.model import TopicPartition
from penstock.ops.checkpoint.look import Looked, look
from penstock.ops.lag.group import GroupView, ask_group, group_note
from penstock.ops.lag.place import Place, committed_in, place_of
from penstock.ops.lag.rates import Rates, Sample, looks_at_rest, looks_in_run, rates_of, window_of
from penstock.ops.lag.words import describe, noise

_AGE_SECONDS = 2.0
_HOT_TIMES, _HOT_OFFSETS = 3, 1000
_BATCHES = 5


@dataclass(frozen=True)
class PartitionLag:
    """One partition: what the sinks have of it, and what waits."""

    topic: str
    partition: int
    committed: int | None
    """The next offset that the sinks need; none of a partition of which they have nothing."""
    end: int
    """The last stable offset: what readers of committed records can reach."""
    lag: int
    seconds_behind: float | None
    """The age of the first unread record; 0 where there is none, None where it could not be read in time."""
    growth: float | None
    group: int | None
    """What the consumer group says; none where it has no offset, or there is no group."""
    hot: bool

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True)
class LagReport:
    """One look at a pipeline's lag."""

    pipeline: str
    at: datetime
    partitions: tuple[PartitionLag, ...]
    total: int
    behind_seconds: float | None
    """The age of the oldest unread record; 0 where none waits, None where no age is known."""
    growth: float | None
    """Offsets a second by which all lag grows, or shrinks below 0."""
    input_rate: float | None
    processing_rate: float | None
    catch_up_seconds: float | None
    """At the present rate; None where it does not catch up, or no rate is known."""
    group: str | None
    notes: tuple[str, ...]
    running: bool = False
    never_ran: bool = False
    batch_offsets: int | None = None
    """The offsets of the largest of the last batches."""
    group_note: str | None = None
    """Why the group says something else than the sinks; none where it does not."""

    @property
    def hot(self) -> tuple[PartitionLag, ...]:
        """The partitions with several times the lag of the others, worst first."""
        return tuple(one for one in self.worst if one.hot)

    @property
    def worst(self) -> tuple[PartitionLag, ...]:
        """All partitions, those with the most lag first."""
        return tuple(sorted(self.partitions, key=lambda one: (-one.lag, one.topic, one.partition)))

    @property
    def text(self) -> str:
        """The whole in a sentence."""
        return describe(self)

    @property
    def sample(self) -> Sample:
        """What a later look is compared with."""
        by_partition = {TopicPartition(one.topic, one.partition): one for one in self.partitions}
        return Sample(
            self.at,
            {at: one.end for at, one in by_partition.items()},
            {at: one.end - one.lag for at, one in by_partition.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "at": self.at.isoformat(),
            "partitions": [asdict(one) for one in self.partitions],
            "hot": [str(one) for one in self.hot],
            "notes": list(self.notes),
            "text": self.text,
        }


def find_lag(config: PipelineConfig, *, before: LagReport | None = None) -> LagReport:
    """Look at the sinks, the checkpoint, the brokers, the group and the run's history.

    How lag moves is told by the history, or by an earlier look.
    """
    seen = look(config)
    settings = settings_of(config.source)
    if seen.brokers.error is not None:
        raise seen.brokers.error
    bounds, running = seen.brokers.bounds or {}, seen.live is not None
    place = place_of(seen, lambda: Cluster(settings))
    waiting = {at: max(place.positions[at], log.start) for at, log in bounds.items() if log.end > place.positions[at]}
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask_group, settings, config.group, bounds)
        aged = pool.submit(first_unread, settings, waiting, _AGE_SECONDS)
        entries = history_of(config.checkpoint).read(events=("started", "lag", "batch", "group"))
        group, times = asked.result(), aged.result()
    now = datetime.now(UTC)
    batches = [entry for entry in entries if entry["event"] == "batch"][-_BATCHES:]
    sample = Sample(now, {at: log.end for at, log in bounds.items()}, place.positions)
    last = before.sample if before is not None and before.running == running else None
    earlier = looks_in_run(entries, last) if running else looks_at_rest(entries, last, place.positions)
    rates = rates_of(earlier, sample, window_of(batches))
    lags = sample.lags
    ages = {at: max(0.0, (now - when).total_seconds()) for at, when in times.items()}
    hot = hot_partitions(lags)
    total = sum(lags.values())
    committed = None if place.committed is None else {at: o for at, o in place.committed.items() if at in bounds}
    why = group_note(group, committed, seen.files, entries, running=running)
    if why is not None and running and committed is not None and read_meanwhile(config, group, committed):
        why = None
    return LagReport(
        pipeline=config.name,
        at=now,
        partitions=tuple(
            PartitionLag(
                at.topic,
                at.partition,
                committed=(committed or {}).get(at),
                end=log.end,
                lag=lags[at],
                seconds_behind=ages.get(at) if lags[at] else 0.0,
                growth=rates.partitions.get(at),
                group=group.offsets.get(at),
                hot=at in hot,
            )
            for at, log in sorted(bounds.items())
        ),
        total=total,
        behind_seconds=max(ages.values(), default=None) if total else 0.0,
        growth=rates.growth,
        input_rate=rates.incoming,
        processing_rate=rates.processing if running else None,
        catch_up_seconds=_catch_up(total, rates),
        group=config.group,
        notes=(*place.notes, *_warnings(seen, place, bounds)),
        running=running,
        never_ran=place.committed is None,
        batch_offsets=max((int(one.get("offsets", 0)) for one in batches), default=None),
        group_note=why,
    )


def hot_partitions(lags: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    """The partitions with several times the median lag, where that is more than a few rows."""
    if len(lags) < 2:
        return frozenset()
    least = max(_HOT_TIMES * median_low(lags.values()), _HOT_OFFSETS)
    return frozenset(at for at, lag in lags.items() if lag >= least)


def read_meanwhile(config: PipelineConfig, group: GroupView, committed: Offsets) -> bool:
    """Whether the group was only asked later than the sinks: they have by now what it says."""
    if any(group.offsets.get(at, -1) < offset for at, offset in committed.items()):
        return False
    now = committed_in(look(config, brokers=False))
    return all(offset <= now.get(at, -1) for at, offset in group.offsets.items() if at in committed)


def _catch_up(total: int, rates: Rates) -> float | None:
    if total == 0:
        return 0.0
    if rates.growth is None or -rates.growth <= noise(rates.incoming):
        return None
    return total / -rates.growth


def _warnings(seen: Looked, place: Place, bounds: Mapping[TopicPartition, LogBounds]) -> list[str]:
    config = seen.config
    told = [f"sink {one.sink} cannot be asked, the checkpoint is: {one.error}" for one in seen.standings if one.error]
    gone = sorted((place.committed or {}).keys() - bounds.keys())
    if gone:
        told.append(f"not counted, since the brokers do not have them or the file does not read them: {_some(gone)}")
    lost = {at: log.start - place.positions[at] for at, log in bounds.items() if log.start > place.positions[at]}
    if lost:
        told.append(
            f"{sum(lost.values()):,} offsets were removed by retention before they were read: {_some(sorted(lost))}"
        )
    found = findings_in(config.checkpoint, seen.files, seen.state, live=seen.live is not None)
    return [*told, *(f"{one.code} {one.summary}" for one in found if one.blocks)]


def _some(places: list[TopicPartition], limit: int = 8) -> str:
    rest = len(places) - limit
    return ", ".join(map(str, places[:limit])) + (f" and {rest} more" if rest > 0 else "")
