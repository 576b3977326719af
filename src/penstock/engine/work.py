"""The input of a lane for a batch, the input of each task, and the report of a task.

A batch is split by size: large partitions are split, small ones combined. For sinks that commit in the slot it is
pinned instead: a slot depends only on the partition, none is split, and every batch has every slot.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias
from zlib import crc32

import pyarrow as pa

from penstock.assembly.inlet import Inlet
from penstock.contracts import Decoder, Reader, Sink, Transform
from penstock.engine.refused import Excluded
from penstock.errors import wire_key
from penstock.metrics.memory import memory_in_use
from penstock.model import COORDINATES, BatchToken, Manifest, OffsetRange, Refusal, Split, TopicPartition
from penstock.registry.exchange import seconds_asked
from penstock.transforms import Dedupe

SMALLEST_SLOT = 5_000
"""Below this many offsets, another task costs more than it gains."""


@dataclass(frozen=True)
class SlotWork:
    """Everything a task needs to know about a batch."""

    token: BatchToken
    reader: Reader
    decoder: Decoder
    transforms: tuple[Transform, ...]
    inlets: tuple[Inlet, ...]
    quarantines: tuple[Sink, ...]
    schema: pa.Schema
    tombstones: Decoder | None = None
    """How a record without a value becomes a delete; None if the decoder does it."""
    deleting: tuple[Sink, ...] = ()
    """The sinks that get the deletes."""
    pinned: int | None = None
    """The number of slots, if a sink commits in its slot."""
    route: str = ""
    """The name of the flow, if there are several."""
    counts: bool = True
    """Whether this flow counts the records that it reads, and quarantines those that cannot be decoded: of several
    that read the same topics one does."""
    excluded: Excluded = field(default_factory=Excluded)
    """Records to exclude: from the whole pipeline, a route or a sink."""
    lacking: str = ""
    """If some sinks already have the batch: those that do not. A record that is bad only now is missing in these."""
    same_topics: Callable[[], None] | None = None
    """Raises if a topic of the batch was re-created; called before a slot commits in its task."""
    key: bytes = field(default_factory=wire_key, repr=False)
    """Signs the errors that the task sends to the driver."""

    def wanted_by(self, sinks: Sequence[Sink]) -> SlotWork:
        """The same work for some of the sinks."""
        return replace(
            self,
            inlets=tuple(inlet for inlet in self.inlets if inlet.sink in sinks),
            deleting=tuple(sink for sink in self.deleting if sink in sinks),
        )


@dataclass
class SlotReport:
    """What a slot did."""

    slot: int
    rows_in: int = 0
    bytes_in: int = 0
    read: set[TopicPartition] = field(default_factory=set)
    """The partitions that it read to the end, if Spark chose them."""
    rows_out: int = 0
    quarantined: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    """The number of quarantined records by code."""
    counts: dict[str, int] = field(default_factory=dict)
    """The counters of the transforms, by name."""
    refused: list[Refusal] = field(default_factory=list)
    """Rows refused by the transforms that are not yet in the quarantine."""
    notices: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    took: float = 0.0
    """The run time of the slot in seconds."""
    pressure: float = 0.0
    """The share of its machine's memory that was in use at its end."""
    stage: int | None = None
    """The Spark stage of the task, if any."""
    deferred: list[str] = field(default_factory=list)
    """Sinks that commit in their slot but have not yet: the slot's bad records must be quarantined first."""
    bad: list[tuple[str, tuple[str, int, int], str]] = field(default_factory=list)
    """If a sink commits in its slot: the bad records, each with the sink or route that refused it (empty for the whole
    pipeline) and the stage."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        began = time.perf_counter()
        yield
        self.spent(phase, time.perf_counter() - began)

    def spent(self, phase: str, seconds: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def take(self, split: Split) -> pa.RecordBatch:
        """The output rows of a transform; its refusals and counters are kept here."""
        self.refused += [replace(refusal, stage="transform") for refusal in split.refused]
        for name, count in split.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        return split.good

    def refused_on(self, route: str) -> None:
        """Note on which route the transforms refused what they did since the last call."""
        self.refused = [
            replace(refusal, by=route) if refusal.stage == "transform" and not refusal.by else refusal
            for refusal in self.refused
        ]


@contextmanager
def reporting(slot: int) -> Iterator[SlotReport]:
    """The report of one slot, which is whole when the work inside is done."""
    report, began, asked = SlotReport(slot), time.perf_counter(), seconds_asked()
    yield report
    report.took, report.pressure = time.perf_counter() - began, memory_in_use()
    report.stage = _stage()
    if (waited := seconds_asked() - asked) > 0:
        report.spent("registry", waited)


def _stage() -> int | None:
    # Only used if already imported: importing it is slow.
    spark = sys.modules.get("pyspark")
    task = spark.TaskContext.get() if spark is not None else None
    return task.stageId() if task is not None else None


StageLane: TypeAlias = Callable[[Any, Sequence[SlotWork], Sequence[tuple[OffsetRange, ...]]], list[SlotReport]]
"""How a lane stages a batch: gets the batch's frame and what to read."""


@dataclass(frozen=True)
class StagedFlow:
    """One pass over some records: how the lane stages it, and the input of its tasks."""

    stage: StageLane
    works: tuple[SlotWork, ...]
    """Of one flow, or of several that share a pass over the same records."""
    topics: frozenset[str] | None = None
    """The topics that it reads; None for all."""
    streaming: bool = False
    """Whether Spark's own source reads: the flow then has a frame for every batch, even without new records."""
    direct: bool = False
    """Whether it uses the direct lane."""

    def of_batch(
        self,
        token: BatchToken,
        sinks: Sequence[Sink],
        excluded: Excluded = Excluded(),
        same_topics: Callable[[], None] | None = None,
        lacking: str = "",
    ) -> StagedFlow:
        """The same for a batch, as far as these sinks want it."""
        if not self.keeps_rows_for_steps:
            names = (inlet.sink.name for work in self.works for inlet in work.wanted_by(sinks).inlets)
            excluded = excluded.all_before_steps(names)
        works = (
            replace(work.wanted_by(sinks), token=token, excluded=excluded, same_topics=same_topics, lacking=lacking)
            for work in self.works
        )
        return replace(self, works=tuple(works))

    def of(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges that it reads."""
        return [r for r in ranges if self.topics is None or r.topic in self.topics]

    @property
    def keeps_rows_for_steps(self) -> bool:
        """Whether a step may decide about a row by others, so that it has to see the rows that stay out of the targets.

        After steps that leave the coordinates out these rows could not be found again.
        """
        return not self.knows_bad_in_slot and all(COORDINATES in work.schema.names for work in self.works)

    @property
    def knows_bad_in_slot(self) -> bool:
        """Whether a slot has met all bad records of its rows by its end. After an exchange they are in other tasks."""
        return self.direct and not any(isinstance(step, Dedupe) for work in self.works for step in work.transforms)


def plan_slots(
    ranges: Sequence[OffsetRange], cores: int, smallest: int = SMALLEST_SLOT
) -> list[tuple[OffsetRange, ...]]:
    """At most `cores` slots of nearly equal size that cover `ranges` exactly."""
    total = sum(len(r) for r in ranges)
    if total == 0:
        return []
    count = max(1, min(cores, ceil(total / smallest)))
    return cut_ranges(ranges, [total * i // count for i in range(1, count + 1)])


def cut_ranges(ranges: Sequence[OffsetRange], cuts: Sequence[int]) -> list[tuple[OffsetRange, ...]]:
    """The ranges in order, cut at these numbers of offsets counted from the first; the last cut is at their end."""
    parts: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    seen = 0
    for whole in ranges:
        start = whole.start
        while start < whole.end:
            end = min(whole.end, start + cuts[len(parts)] - seen)
            current.append(replace(whole, start=start, end=end))
            seen += end - start
            start = end
            if seen == cuts[len(parts)]:
                parts.append(tuple(current))
                current = []
    return parts


def pin_slots(ranges: Sequence[OffsetRange], slots: int) -> list[tuple[OffsetRange, ...]]:
    """Exactly `slots` slots, some of them empty: each partition in its own, always the same."""
    pinned: list[list[OffsetRange]] = [[] for _ in range(slots)]
    for whole in ranges:
        if len(whole):
            pinned[pinned_slot(whole.topic, whole.partition, slots)].append(whole)
    return [tuple(slot) for slot in pinned]


def pinned_slot(topic: str, partition: int, slots: int) -> int:
    """The slot of a partition. The partitions of a topic are assigned round-robin, so that slots are similar
    in size."""
    return (crc32(topic.encode()) + partition) % slots
