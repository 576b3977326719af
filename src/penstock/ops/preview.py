"""Real messages from the topics through the pipeline, and nothing written: no table, no checkpoint, no consumer group.

Enters: a pipeline and how many messages. Leaves: the rows that each sink would be given, and the bad records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.assembly.build import build
from penstock.config import PipelineConfig, reveal
from penstock.contracts import Reader
from penstock.engine.trial import trial_of
from penstock.kafka import Cluster, LogBounds
from penstock.model import RAW_SCHEMA, OffsetRange, TopicPartition
from penstock.ops.cases.run import Output, SparkWhenNeeded, seen_in
from penstock.preflight.checks import check_brokers

From = Literal["latest", "earliest"]


@dataclass(frozen=True)
class Preview:
    """What some messages would become."""

    pipeline: str
    lane: str
    messages: int
    seen: Output


def preview(config: PipelineConfig, limit: int, start: From = "latest", session: Any = None) -> Preview:
    """Carry the newest messages of all partitions, or the oldest, as far as the sinks."""
    pipeline = build(config)
    bounds = check_brokers(Cluster(pipeline.settings), pipeline)
    records = _read(pipeline.reader, bounds, limit, start)
    spark = SparkWhenNeeded(session)
    spark.settings = reveal(config.spark)
    try:
        results = trial_of(pipeline, spark, preview=True).run([records])
    finally:
        spark.stop()
    return Preview(config.name, pipeline.lane.lane, records.num_rows, seen_in(results))


def _read(reader: Reader, bounds: Mapping[TopicPartition, LogBounds], limit: int, start: From) -> pa.RecordBatch:
    """At most `limit` records. Offsets have holes, so more are read until there are enough records."""
    near: Callable[[LogBounds, int], tuple[int, int]] = _newest if start == "latest" else _oldest
    reach = limit
    while True:
        ranges = [OffsetRange(at.topic, at.partition, *near(log, reach)) for at, log in sorted(bounds.items())]
        batches = list(reader.read([r for r in ranges if len(r)]))
        found = pa.Table.from_batches(batches, RAW_SCHEMA)
        if found.num_rows >= limit or reach >= max((log.end - log.start for log in bounds.values()), default=0):
            break
        reach *= 4
    order = "descending" if start == "latest" else "ascending"
    keys = [("timestamp", order), ("offset", order), ("topic", "ascending"), ("partition", "ascending")]
    chosen = found.take(pc.sort_indices(found, sort_keys=keys)[:limit])
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in chosen.columns], schema=RAW_SCHEMA)


def _newest(log: LogBounds, reach: int) -> tuple[int, int]:
    return max(log.start, log.end - reach), log.end


def _oldest(log: LogBounds, reach: int) -> tuple[int, int]:
    return log.start, min(log.end, log.start + reach)
