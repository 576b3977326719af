"""Batches of a pipeline over records in memory: no brokers and no JVM. Steps, sinks and commits are the product's own.

The targets are real tables below the folder of the pipeline, read by others than their writers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog.sql import SqlCatalog
from tests.local_spark import LocalSession
from tests.tables import read_table
from tests.unit.ops.quarantines import pipeline

from penstock.assembly.build import build
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import GivenBatches
from penstock.engine.committer import Committer
from penstock.engine.flows import CurrentFlows
from penstock.engine.memory import MemoryReader
from penstock.metrics import BatchMetrics
from penstock.model import BAD_SCHEMA, RAW_SCHEMA, BatchToken, OffsetRange
from penstock.preflight.loss import BatchRanges
from penstock.quarantine import GAPS_SCHEMA, Gap
from penstock.supervision.bounded import OfSession

TOPIC = "orders"
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SINKS: dict[str, dict[str, Any]] = {
    "delta": {"type": "delta", "path": "lake/delta"},
    "iceberg": {"type": "iceberg", "table": "shop.orders", "warehouse": "lake/iceberg"},
    "files": {"type": "parquet", "path": "lake/files"},
}
Enter = Callable[[int, str], None]


@dataclass(frozen=True)
class BatchesWithGaps(GivenBatches):
    """Batches of which some records are known to be gone."""

    gaps: Mapping[int, tuple[Gap, ...]] = field(default_factory=dict)

    def ranges(self, batch_id: int) -> BatchRanges:
        return replace(super().ranges(batch_id), gaps=self.gaps.get(batch_id, ()))


@dataclass
class MemoryRun:
    """A pipeline over the partitions of one topic, each a list of values: rows, bytes or None."""

    folder: Path
    partitions: Sequence[Sequence[Any]]
    sinks: Sequence[str] = tuple(SINKS)
    schema: str = "order_id BIGINT, amount DOUBLE"
    transforms: Sequence[Mapping[str, Any]] = ()
    gaps: Mapping[int, tuple[Gap, ...]] = field(default_factory=dict)
    slots: int | None = None
    """Pins the number of slots, as a sink that commits in its slot does."""
    cores: int = 1
    cuts: Sequence[Sequence[int]] | None = None
    """For each batch the end of every partition; left out for one batch."""

    def run(self, enter: Enter = lambda batch, phase: None, first: int = 0) -> list[BatchMetrics]:
        """A process of its own: carry the batches from `first` on."""
        config = pipeline(
            self.folder,
            source={"type": "kafka", "brokers": "localhost:1", "topics": [TOPIC], "on_data_loss": "record"},
            decode={"format": "json", "schema": self.schema},
            sinks=[{"name": name, **SINKS[name]} for name in self.sinks],
            transforms=list(self.transforms),
        )
        made = replace(build(config), reader=MemoryReader(self.records()))
        for quarantine in made.quarantines:
            quarantine.prepare(BAD_SCHEMA)
        assert made.targets.gaps is not None
        made.targets.gaps.prepare(GAPS_SCHEMA)
        session = LocalSession(copies=False)
        flows = CurrentFlows(made, session, lambda text: None, pinned=self.slots)
        flows.prepare()
        batches = BatchesWithGaps(self.batches(), None, gaps=self.gaps)
        runner = BatchRunner(
            BatchToken(config.name, "query", 0, ()),
            flows,
            batches,
            Committer(made.targets),
            lambda: self.cores,
            enter=enter,
        )
        return [runner.run(OfSession(session), number) for number in range(first, len(batches.batches))]

    def batches(self) -> tuple[tuple[OffsetRange, ...], ...]:
        cuts = self.cuts or [[len(values) for values in self.partitions]]
        starts = [[0] * len(self.partitions), *cuts]
        return tuple(
            tuple(OffsetRange(TOPIC, at, start, end) for at, (start, end) in enumerate(zip(*both, strict=True)))
            for both in zip(starts, cuts, strict=False)
        )

    def records(self) -> pa.RecordBatch:
        """Later records of a partition have later times; those of one offset differ by a second a partition."""
        rows = [
            {
                "value": value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
                "topic": TOPIC,
                "partition": partition,
                "offset": offset,
                "timestamp": MOMENT + timedelta(seconds=offset * 100 + partition),
            }
            for partition, values in enumerate(self.partitions)
            for offset, value in enumerate(values)
        ]
        return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)

    # --- what the targets hold ---

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """The rows of a target; none where it is not there yet."""
        lake = self.folder / "lake"
        match sink:
            case "delta":
                return list(read_table(lake / "delta").to_pylist())
            case "iceberg":
                catalog = SqlCatalog("penstock", uri=f"sqlite:///{lake}/iceberg/catalog.db", warehouse=str(lake))
                return list(catalog.load_table("shop.orders").scan().to_arrow().to_pylist())
            case _:
                files = lake / "files"
                found = ds.dataset(files, format="parquet").to_table(use_threads=False) if files.is_dir() else None
                return list(found.to_pylist()) if found is not None else []

    def places(self, sink: str) -> Counter[tuple[int, int]]:
        """How often the record of each partition and offset is in a target."""
        return Counter((row["_penstock"]["partition"], row["_penstock"]["offset"]) for row in self.rows(sink))

    def quarantined(self, sink: str | None = None) -> Counter[tuple[int, int]]:
        """How often each record is in the quarantine, of those that one sink has to do without or of all."""
        rows = read_table(self.folder / "lake/quarantine").to_pylist()
        by = [(row["stage"].partition(" ")[2], (row["partition"], row["offset"])) for row in rows]
        return Counter(place for names, place in by if sink is None or not names or sink in names.split(","))

    def gap_ranges(self) -> list[tuple[int, int, int | None]]:
        rows = read_table(self.folder / "lake/quarantine_gaps").to_pylist()
        return [(row["partition"], row["from_offset"], row["to_offset"]) for row in rows]
