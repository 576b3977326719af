"""A trial: given messages through a pipeline's own parts, and nothing written anywhere.

Enters: batches of records in `RAW_SCHEMA`. Leaves, for each batch: the rows that would reach each sink, the bad
records, what was counted. The reader and the sinks are in memory; all between them is what a run has. The direct lane
needs no Spark, and loads none.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import translate_error
from penstock.assembly.layout import StreamInput
from penstock.assembly.state import STATE_SETTINGS
from penstock.assembly.targets import merge_rules
from penstock.assembly.trial_registry import Given
from penstock.checkpoint import SparkCheckpoint
from penstock.config import reveal
from penstock.contracts import Reader, Sink
from penstock.engine.direct import run_slot, share_slot, stage_direct
from penstock.engine.flows import CurrentFlows
from penstock.engine.memory import CollectingSink, MemoryReader, ranges_of
from penstock.engine.work import SlotReport, StagedFlow
from penstock.errors import TerminalError, from_wire
from penstock.model import (
    BAD_SCHEMA,
    RAW_SCHEMA,
    BatchToken,
    OffsetRange,
)
from penstock.quarantine import RefusingQuarantine

QUARANTINE = "quarantine"

Batch: TypeAlias = pa.RecordBatch | timedelta
"""Records in `RAW_SCHEMA`, or the time that passes before the next ones."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch gave."""

    sinks: Mapping[str, pa.Table]
    quarantine: pa.Table
    """In `BAD_SCHEMA`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    notices: frozenset[str] = frozenset()
    state: pa.Table | None = None
    """The remaining rows of state; None for a stateless pipeline."""


@dataclass(frozen=True)
class Trial:
    """A pipeline whose reader and sinks are in memory."""

    pipeline: Pipeline
    given: Given
    session: Any
    """None if Spark is not needed: everything runs in this process, in one slot."""

    def run(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Process the batches in order; advancing time gives no result unless it produces rows."""
        if self.session is None:
            return _run(self.pipeline, self.given, None, batches)
        try:
            if self.pipeline.stateful:
                # Each batch is one of the query, with those after it in which only time has passed.
                with tempfile.TemporaryDirectory(prefix="penstock-trial-") as folder:
                    return list(_StreamTrial(self.pipeline, self.given, self.session, Path(folder)).run(batches))
            return _run(self.pipeline, self.given, self.session, batches)
        except Exception as error:
            raise translate_error(error) from error


def trial_of(pipeline: Pipeline, session: Callable[[], Any], *, given: Given = Given(), preview: bool = False) -> Trial:
    """The trial of a pipeline. Spark is only started if the pipeline needs it.

    A test uses no registry, and a pipeline without a quarantine stops at a bad record, as in a run. A `preview` uses
    registries, and always collects bad records.
    """
    needs_spark = pipeline.stateful or pipeline.lane.lane != "direct"
    return Trial(_collecting(pipeline, preview), given, session() if needs_spark else None)


def _collecting(pipeline: Pipeline, preview: bool) -> Pipeline:
    """The same pipeline with sinks that collect."""
    refuses = isinstance(pipeline.quarantines[0], RefusingQuarantine) and not preview
    quarantines: tuple[Sink, ...] = pipeline.quarantines if refuses else (CollectingSink(QUARANTINE),)
    sinks = tuple(CollectingSink(sink.name, merge_rules(sink)) for sink in pipeline.config.sinks)
    targets = replace(pipeline.targets, sinks=sinks, quarantines=quarantines, gaps=None)
    return replace(pipeline, targets=targets).reading(pipeline.schemas, frozen=not preview)


def _run(pipeline: Pipeline, given: Given, session: Any, batches: Sequence[Batch]) -> list[BatchResult]:
    records = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
    every = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA), *records])
    reader: Reader = MemoryReader(every, given)
    notices: list[str] = []
    flows = CurrentFlows(replace(pipeline, reader=reader), session, notices.append)
    flows.prepare()
    return [_batch(pipeline, flows.staged, session, number, batch) for number, batch in enumerate(records)]


def _batch(
    pipeline: Pipeline, flows: Sequence[StagedFlow], session: Any, number: int, records: pa.RecordBatch
) -> BatchResult:
    token = BatchToken(pipeline.config.name, "trial", number, tuple(ranges_of(records)))
    reports: list[SlotReport] = []
    for flow in flows:
        current = flow.of_batch(token, pipeline.sinks)
        reports += _staged(current, session, current.of(token.ranges))
    return _collected(pipeline, reports)


def _collected(pipeline: Pipeline, reports: Sequence[SlotReport]) -> BatchResult:
    """What some slots gave."""
    manifests = [manifest for report in reports for manifest in report.manifests]
    sinks = {sink.name: sink.rows(manifests) for sink in pipeline.sinks if isinstance(sink, CollectingSink)}
    bad = [sink.rows(manifests) for sink in pipeline.quarantines if isinstance(sink, CollectingSink)]
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return BatchResult(
        sinks,
        bad[0] if bad else BAD_SCHEMA.empty_table(),
        counts,
        frozenset().union(*(report.notices for report in reports)),
    )


def _staged(flow: StagedFlow, session: Any, ranges: Sequence[OffsetRange]) -> list[SlotReport]:
    if flow.stage is not stage_direct:
        return flow.stage(session.range(0), flow.works, [tuple(ranges)])
    try:
        return [share_slot(flow.works, 0, ranges) if len(flow.works) > 1 else run_slot(flow.works[0], 0, ranges)]
    except RuntimeError as error:
        # Tasks send Penstock's errors in a form that Spark keeps.
        told = from_wire(str(error))
        if told is None:
            raise
        raise told from error


_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # It would infer from the keys of a join that they are not null, and drop the records that only advance time.
    "spark.sql.constraintPropagation.enabled": "false",
}


class _StreamTrial:
    """A trial of a pipeline with state: the stream that a run has, over files in place of topics."""

    def __init__(self, pipeline: Pipeline, given: Given, session: Any, folder: Path) -> None:
        self.pipeline, self.given, self.session, self.folder = pipeline, given, session, folder
        self.checkpoint = SparkCheckpoint(str(folder / "checkpoint"))

    def run(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        from penstock.engine.query import choose_file_manager  # the direct lane loads no Spark

        records = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
        every = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA), *records])
        pipeline = replace(self.pipeline, reader=MemoryReader(every, self.given))
        for name, value in {**STATE_SETTINGS, **_SETTINGS}.items():
            self.session.conf.set(name, reveal(pipeline.config.spark).get(name, value))
        choose_file_manager(self.session, self.checkpoint.path)
        flows = CurrentFlows(pipeline, self.session, lambda text: None, self.checkpoint.late_by)
        flows.prepare()
        stream = flows.new_stream()
        assert stream is not None, "only for a stateful pipeline"
        stream.clock = True
        inputs = stream.layout.inputs
        frame = stream.frame(self.session, {one.name: self._raw(one) for one in inputs})
        mode = "update" if stream.layout.changes else "append"
        for number, batch in enumerate(batches):
            for one in inputs:
                self._send(one, batch, number)
            yield self._batch(flows, frame.writeStream.outputMode(mode), batch)

    def _batch(self, flows: CurrentFlows, writer: Any, batch: Batch) -> BatchResult:
        """Run the query until it has nothing left to do, and combine the results of its batches."""
        waiting = tuple(ranges_of(batch)) if isinstance(batch, pa.RecordBatch) else ()
        reports: list[SlotReport] = []
        failed: list[Exception] = []

        def run_batch(frame: Any, batch_id: int) -> None:
            nonlocal waiting
            token = BatchToken(self.pipeline.config.name, "trial", batch_id, waiting)
            waiting = ()
            try:
                for flow in flows.now():
                    current = flow.of_batch(token, self.pipeline.sinks)
                    reports.extend(current.stage(frame, current.works, ()))
            except Exception as error:
                failed.append(error)
                raise

        query = writer.foreachBatch(run_batch).option("checkpointLocation", self.checkpoint.path)
        query = query.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            raise translate_error(failed[0] if failed else error) from error
        return replace(_collected(self.pipeline, reports), state=self._state(query))

    def _state(self, query: Any) -> pa.Table:
        """The remaining rows of state; with their keys, if only one step is stateful."""
        operators = query.lastProgress["stateOperators"] if query.lastProgress is not None else []
        count = sum(one["numRowsTotal"] for one in operators)
        if len(operators) == 1 and operators[0]["operatorName"] in ("stateStoreSave", "dedupeWithinWatermark"):
            kept = self.session.read.format("statestore").load(self.checkpoint.path)
            keys: pa.Table = kept.selectExpr("key.*").toArrow()
            return keys
        return pa.table({"row": pa.array(range(count), pa.int64())})

    def _raw(self, one: StreamInput) -> Any:
        from penstock.engine.frame import spark_schema

        folder = self.folder / one.name
        folder.mkdir(parents=True)
        return self.session.readStream.schema(spark_schema(RAW_SCHEMA)).parquet(str(folder))

    def _send(self, one: StreamInput, batch: Batch, number: int) -> None:
        """Put the records of an input where its stream reads, or let time pass."""
        if isinstance(batch, timedelta):
            records = self._tick(one, batch)
        else:
            topics = pa.array(one.topics or pc.unique(batch.column("topic")).to_pylist(), pa.string())
            records = batch.filter(pc.is_in(batch.column("topic"), value_set=topics))
        if records.num_rows:
            hidden = self.folder / one.name / f".{number}.parquet"
            pq.write_table(pa.Table.from_batches([records]), hidden)
            hidden.rename(self.folder / one.name / f"{number}.parquet")

    def _tick(self, one: StreamInput, span: timedelta) -> pa.RecordBatch:
        from penstock.engine.stream import CLOCK

        if one.watermark is None:
            raise TerminalError(
                "TRIAL_WITHOUT_TIME",
                "advance needs a watermark: it advances event time",
                hint="remove `advance` from the case",
            )
        last = self.checkpoint.last_begun()
        mark = self.checkpoint.watermark(last) if last is not None else 0
        newest = timedelta(milliseconds=mark) + one.watermark.delay + span
        tick = {"topic": CLOCK, "partition": 0, "offset": 0, "timestamp": round(newest.total_seconds() * 1_000_000)}
        return pa.RecordBatch.from_pylist([tick], schema=RAW_SCHEMA)
