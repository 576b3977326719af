"""How far behind a pipeline is: what all its sinks have committed against the ends of the logs. No JVM.

The sinks' own positions count, and the checkpoint if a sink has none; before a first run, its start. The consumer group
is compared with them, and a difference is explained. LagRates are offsets a second over several samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, median_low
from typing import Any

from penstock.assembly.reaching import settings_of
from penstock.checkpoint import Offsets
from penstock.checkpoint.logs import CheckpointFiles
from penstock.config import PipelineConfig
from penstock.errors import PenstockError, one_line
from penstock.kafka import KafkaSettings, LogBounds
from penstock.kafka.ages import first_unread
from penstock.kafka.groups import GroupOffsets
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, GroupNoted, LagNoted, RunStarted, from_lists, history_of
from penstock.model import TopicPartition, lags_of
from penstock.ops.snapshot import ReadPosition, Snapshot, committed_in, read_position, take_snapshot
from penstock.wording import rate, some, spell

_GROUP_SECONDS = 2.0


@dataclass(frozen=True)
class GroupView:
    """The state of the group on the brokers."""

    name: str | None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    error: PenstockError | None = None


def ask_group(settings: KafkaSettings, name: str | None, partitions: Iterable[TopicPartition]) -> GroupView:
    """The offsets of the group, if the pipeline has one."""
    if name is None:
        return GroupView(None)
    try:
        with closing(GroupOffsets(settings, name, _GROUP_SECONDS)) as group:
            return GroupView(name, group.committed(partitions))
    except PenstockError as error:
        return GroupView(name, error=error)


def group_note(
    group: GroupView,
    committed: Offsets | None,
    files: CheckpointFiles,
    entries: Iterable[Entry],
    *,
    running: bool,
) -> str | None:
    """Why the group differs from the sinks, if it does. `committed` is None before the first run."""
    if group.name is None:
        return "no offsets are committed to a consumer group: source.group is false"
    if group.error is not None:
        return f"consumer group {group.name} cannot be read: {one_line(group.error)}"
    if committed is None:
        return (
            f"consumer group {group.name} has offsets, but this pipeline has committed none: someone else wrote them, "
            "or the pipeline has another checkpoint now"
            if group.offsets
            else None
        )
    differs = sorted(at for at, offset in committed.items() if group.offsets.get(at) != offset)
    if not differs:
        return None
    if group.offsets:
        places = some([_sides(at, group.offsets, committed) for at in differs], 3)
        text = f"consumer group {group.name} differs from the sinks in {places}: "
    else:
        text = f"consumer group {group.name} has no offsets: "
    return text + (_failure(entries, running=running) or _reason(group.offsets, committed, files, running=running))


def _sides(at: TopicPartition, held: Mapping[TopicPartition, int], committed: Offsets) -> str:
    return f"{at} ({f'{held[at]:,}' if at in held else 'none'}, they have {committed[at]:,})"


def _failure(entries: Iterable[Entry], *, running: bool) -> str | None:
    """What the last run noted when it failed to commit, unless it has worked since."""
    noted = [entry for entry in entries if isinstance(entry.fact, RunStarted | GroupNoted)]
    error = noted[-1].fact.error if noted and isinstance(noted[-1].fact, GroupNoted) else None
    if not error:
        return None
    when = f"{noted[-1].at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{f'commits to it have failed since {when}' if running else f'the last run failed at {when}'}: {error}"


def _reason(held: Mapping[TopicPartition, int], committed: Offsets, files: CheckpointFiles, *, running: bool) -> str:
    if not held:
        return "no batch was committed to it yet" if running else "no run committed to it, or they have expired"
    theirs, ours = _batch_at(held, files), _batch_at(committed, files)
    if theirs is None:
        return "its offsets belong to no batch in the checkpoint: changed by someone else, or from an older run"
    sides = f"it is at batch {theirs}, the sinks at {f'batch {ours}' if ours is not None else 'none'}"
    if any(offset > committed.get(at, offset) for at, offset in held.items()):
        return f"{sides}: a sink or the checkpoint was restored"
    if running:
        return f"{sides}: it will catch up in a moment"
    return f"{sides}: the last run ended before committing to it"


def _batch_at(offsets: Mapping[TopicPartition, int], files: CheckpointFiles) -> int | None:
    """The newest batch that ends where these offsets are."""
    for batch in sorted(files.offsets, reverse=True):
        ends = files.ends(batch)
        if ends and all(offsets[at] == ends[at] for at in offsets.keys() & ends.keys()):
            return batch
    return None


_WINDOW, _LONGEST_WINDOW = timedelta(minutes=2), timedelta(minutes=15)
_OLDEST = timedelta(hours=1)
_SHORTEST = timedelta(seconds=1)
_BATCHES_COVERED = 4


@dataclass(frozen=True)
class Sample:
    """The log ends and the read offsets at one moment."""

    at: datetime
    ends: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]

    @property
    def lags(self) -> dict[TopicPartition, int]:
        """The offsets that waited, by partition."""
        return lags_of(self.ends, self.positions)


@dataclass(frozen=True)
class LagRates:
    """Offsets a second; None until there are two samples."""

    growth: float | None = None
    incoming: float | None = None
    processing: float | None = None
    partitions: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The growth of each partition."""


def samples_in(entries: Iterable[Entry]) -> list[Sample]:
    """The samples that a run noted in its history."""
    return [
        Sample(entry.at, from_lists(entry.fact.ends), from_lists(entry.fact.committed))
        for entry in entries
        if isinstance(entry.fact, LagNoted)
    ]


def samples_in_run(entries: Sequence[Entry], last: Sample | None) -> list[Sample]:
    """The samples to compare with during a run: those since it started, as nothing was read before."""
    began = max((at for at, entry in enumerate(entries) if isinstance(entry.fact, RunStarted)), default=0)
    return [*samples_in(entries[began:]), *([last] if last is not None else [])]


def samples_at_rest(entries: Iterable[Entry], last: Sample | None, positions: Offsets) -> list[Sample]:
    """The same without a run: the last sample. The run may have read on after it, so only its log ends still count."""
    known = [last] if last is not None else samples_in(entries)[-1:]
    return [replace(one, positions=positions) for one in known]


def window_of(batches: Sequence[BatchMetrics]) -> timedelta:
    """How far to look back: over several batches, since lag falls when one commits and rises in between."""
    longest = max((one.cycle for one in batches), default=0.0)
    return min(max(_WINDOW, timedelta(seconds=_BATCHES_COVERED * longest)), _LONGEST_WINDOW)


def rates_of(samples: Sequence[Sample], now: Sample, window: timedelta = _WINDOW) -> LagRates:
    """The rates over the samples in the window, or else since the newest sample within an hour."""
    earlier = sorted((one for one in samples if now.at - one.at >= _SHORTEST), key=lambda one: one.at)
    used = [one for one in earlier if now.at - one.at <= window] or earlier[-1:]
    if not used or now.at - used[0].at > _OLDEST:
        return LagRates()
    series = [*used, now]
    shares = _shares([(one.at - used[0].at).total_seconds() for one in series])
    lags = [one.lags for one in series]
    growth = _slope(shares, [sum(one.values()) for one in lags])
    incoming = max(0.0, _slope(shares, [sum(one.ends[at] for at in one.lags) for one in series]))
    everywhere = lags[-1].keys() & set.intersection(*(set(one) for one in lags))
    partitions = {at: _slope(shares, [one[at] for one in lags]) for at in everywhere}
    return LagRates(growth, incoming, max(0.0, incoming - growth), partitions)


def _shares(moments: Sequence[float]) -> list[float]:
    """What each value counts in the slope of the line through all of them, by least squares."""
    centre = fmean(moments)
    spread = sum((one - centre) ** 2 for one in moments)
    return [(one - centre) / spread for one in moments]


def _slope(shares: Sequence[float], values: Sequence[int]) -> float:
    return round(sum(share * value for share, value in zip(shares, values, strict=True)), 6)


_NOISE_SHARE, _NOISE = 0.01, 0.5
_HOVERING_SHARE = 0.5


def describe(report: LagReport) -> str:
    """How much waits, how old the oldest of it is, and whether it is catching up."""
    if report.total == 0:
        return "caught up: nothing waits" if report.running else f"nothing waits; {_at_rest(report)}"
    text = f"{report.total:,} behind"
    if report.behind_seconds is not None:
        text += f", the oldest unread record is {spell(report.behind_seconds)} old"
    return f"{text}; {_outlook(report) if report.running else _at_rest(report)}"


def _at_rest(report: LagReport) -> str:
    rest = "it has not run yet" if report.never_ran else "the pipeline is not running"
    coming = report.growth is not None and report.growth > _NOISE
    return f"{rest}, and {rate(report.growth or 0.0)} arrive" if coming else rest


def _outlook(report: LagReport) -> str:
    growth = report.growth
    if keeps_up(report):
        return "it keeps up: one or two batches will read all that waits"
    if growth is None:
        return "the growth is not known yet"
    if growth > noise(report.input_rate):
        return f"growing by {rate(growth)}: it does not catch up"
    if report.catch_up_seconds is None:
        return "neither growing nor shrinking: it does not catch up"
    return f"shrinking by {rate(-growth)}: caught up in about {spell(report.catch_up_seconds)}"


def keeps_up(report: LagReport) -> bool:
    """Whether no more waits than comes in while a batch is made: lag then rises and falls with every batch."""
    if report.batch_offsets is None or report.total > 2 * report.batch_offsets:
        return False
    return report.growth is None or report.growth <= _HOVERING_SHARE * (report.input_rate or 0.0) + _NOISE


def noise(incoming: float | None) -> float:
    """The growth below which lag counts as steady."""
    return max(_NOISE, _NOISE_SHARE * (incoming or 0.0))


_AGE_SECONDS = 2.0
_HOT_TIMES, _HOT_OFFSETS = 3, 1000
_BATCHES = 5


@dataclass(frozen=True)
class PartitionLag:
    """One partition: what the sinks have of it, and what waits."""

    topic: str
    partition: int
    committed: int | None
    """The next offset that the sinks need; None for a partition that they have no rows of."""
    end: int
    """The last stable offset: the end for readers of committed records."""
    lag: int
    seconds_behind: float | None
    """The age of the first unread record; 0 without one, None if it could not be read in time."""
    growth: float | None
    group: int | None
    """The offset of the consumer group, if any."""
    hot: bool

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True)
class LagReport:
    """A pipeline's lag at one moment."""

    pipeline: str
    at: datetime
    partitions: tuple[PartitionLag, ...]
    total: int
    behind_seconds: float | None
    """The age of the oldest unread record; 0 if none waits, None if unknown."""
    growth: float | None
    """The growth of the total lag in offsets per second; negative if it shrinks."""
    input_rate: float | None
    processing_rate: float | None
    catch_up_seconds: float | None
    """At the current rate; None if it does not catch up, or the rate is unknown."""
    group: str | None
    notes: tuple[str, ...]
    running: bool = False
    never_ran: bool = False
    batch_offsets: int | None = None
    """The offsets of the largest of the last batches."""
    group_note: str | None = None
    """Why the group differs from the sinks, if it does."""

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
        """What a later report is compared with."""
        by_partition = {TopicPartition(one.topic, one.partition): one for one in self.partitions}
        return Sample(
            self.at,
            {at: one.end for at, one in by_partition.items()},
            {at: one.end - one.lag for at, one in by_partition.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **asdict(self),
            "at": self.at.isoformat(),
            "partitions": [asdict(one) for one in self.partitions],
            "hot": [str(one) for one in self.hot],
            "text": self.text,
        }


def find_lag(snapshot: Snapshot, before: LagReport | None = None) -> LagReport:
    """The lag by the sinks, the checkpoint, the brokers and the group.

    How lag moves comes from the run's history, or from an earlier report.
    """
    config, settings = snapshot.config, settings_of(snapshot.config.source)
    if snapshot.brokers.error is not None:
        raise snapshot.brokers.error
    bounds, running = snapshot.brokers.bounds or {}, snapshot.live is not None
    place = read_position(snapshot)
    waiting = {at: max(place.positions[at], log.start) for at, log in bounds.items() if log.end > place.positions[at]}
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask_group, settings, config.group, bounds)
        aged = pool.submit(first_unread, settings, waiting, _AGE_SECONDS)
        entries = history_of(config.checkpoint).read(RunStarted, LagNoted, BatchMetrics, GroupNoted)
        group, times = asked.result(), aged.result()
    now = datetime.now(UTC)
    batches = [entry.fact for entry in entries if isinstance(entry.fact, BatchMetrics)][-_BATCHES:]
    sample = Sample(now, {at: log.end for at, log in bounds.items()}, place.positions)
    last = before.sample if before is not None and before.running == running else None
    earlier = samples_in_run(entries, last) if running else samples_at_rest(entries, last, place.positions)
    rates = rates_of(earlier, sample, window_of(batches))
    lags = sample.lags
    ages = {at: max(0.0, (now - when).total_seconds()) for at, when in times.items()}
    hot = hot_partitions(lags)
    total = sum(lags.values())
    committed = None if place.committed is None else {at: o for at, o in place.committed.items() if at in bounds}
    why = group_note(group, committed, snapshot.files, entries, running=running)
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
        notes=(*place.notes, *_warnings(snapshot, place, bounds)),
        running=running,
        never_ran=place.committed is None,
        batch_offsets=max((one.offsets for one in batches), default=None),
        group_note=why,
    )


def hot_partitions(lags: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    """The partitions with several times the median lag, if that is more than a few rows."""
    if len(lags) < 2:
        return frozenset()
    least = max(_HOT_TIMES * median_low(lags.values()), _HOT_OFFSETS)
    return frozenset(at for at, lag in lags.items() if lag >= least)


def read_meanwhile(config: PipelineConfig, group: GroupView, committed: Offsets) -> bool:
    """Whether the group was only read later than the sinks, which have caught up with it by now."""
    if any(group.offsets.get(at, -1) < offset for at, offset in committed.items()):
        return False
    now = committed_in(take_snapshot(config, brokers=None))
    return all(offset <= now.get(at, -1) for at, offset in group.offsets.items() if at in committed)


def _catch_up(total: int, rates: LagRates) -> float | None:
    if total == 0:
        return 0.0
    if rates.growth is None or -rates.growth <= noise(rates.incoming):
        return None
    return total / -rates.growth


def _warnings(snapshot: Snapshot, place: ReadPosition, bounds: Mapping[TopicPartition, LogBounds]) -> list[str]:
    warnings = [
        f"sink {one.sink} cannot be read, so the checkpoint is used: {one.error}"
        for one in snapshot.standings
        if one.error
    ]
    gone = sorted((place.committed or {}).keys() - bounds.keys())
    if gone:
        warnings.append(f"not counted, because they are not on the brokers or not in the file: {some(gone)}")
    lost = {at: log.start - place.positions[at] for at, log in bounds.items() if log.start > place.positions[at]}
    if lost:
        warnings.append(
            f"{sum(lost.values()):,} offsets expired (topic retention) before they were read: {some(sorted(lost))}"
        )
    return [*warnings, *(f"{one.code} {one.summary}" for one in snapshot.file_findings if one.blocks)]
