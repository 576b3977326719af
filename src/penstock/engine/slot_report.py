"""What a slot did, for the driver: counts, times, manifests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.engine.outlet import Outlet, Sides
from penstock.metrics.memory import memory_in_use
from penstock.model import Manifest, Refusal, Split, TopicPartition
from penstock.registry.exchange import seconds_asked


@dataclass
class SlotReport:
    """What a slot did."""

    slot: int
    rows_in: int = 0
    bytes_in: int = 0
    read: set[TopicPartition] = field(default_factory=set)
    """The partitions that it read to the end, where Spark chose them."""
    rows_out: int = 0
    quarantined: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    """How many records were quarantined, by their codes."""
    counts: dict[str, int] = field(default_factory=dict)
    """What the transforms counted, by its names."""
    refused: list[Refusal] = field(default_factory=list)
    """Rows that the transforms refused and that are not in the quarantine yet."""
    notices: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    took: float = 0.0
    """Seconds from the slot's first line to its last."""
    pressure: float = 0.0
    """The share of its machine's memory that was in use at its end."""
    stage: int | None = None
    """Spark's stage that the task was of, where it was one."""
    deferred: list[str] = field(default_factory=list)
    """Sinks that commit in their slot and did not yet: the slot's bad records have to be quarantined first."""
    bad: list[tuple[str, tuple[str, int, int], str]] = field(default_factory=list)
    """Where a sink commits in its slot: the bad records, each with who refused it, empty for the whole pipeline, and at
    which stage."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        began = time.perf_counter()
        yield
        self.spent(phase, time.perf_counter() - began)

    def spent(self, phase: str, seconds: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def finish(self, sides: Sides | None = None, out: Outlet | None = None) -> None:
        """Finish what was staged, first the sides, and keep the manifests.

        A slot with bad records does not commit before these are in the quarantine.
        """
        with self.timed("stage"):
            self.manifests += sides.finish() if sides is not None else []
            if out is not None:
                self.manifests += out.finish(defer=self.quarantined > 0 or bool(out.refused))
                self.deferred += out.deferred
        for sink, seconds in (out.seconds if out is not None else {}).items():
            self.spent(f"stage:{sink}", seconds)

    def take(self, split: Split) -> pa.RecordBatch:
        """The rows of a transform that go on; what it refused and counted is kept here."""
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
    # Asked only where it is there: not everyone pays for importing it.
    spark = sys.modules.get("pyspark")
    task = spark.TaskContext.get() if spark is not None else None
    return task.stageId() if task is not None else None
