"""A trial of a pipeline with state: the stream that a run has, over files in place of topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import translate_error
from penstock.assembly.layout import StreamInput
from penstock.assembly.state import STATE_SETTINGS
from penstock.assembly.trial_registry import Given
from penstock.checkpoint import SparkCheckpoint
from penstock.config import reveal
from penstock.engine.flows import CurrentFlows
from penstock.engine.memory import MemoryReader, ranges_of
from penstock.engine.query import choose_file_manager
from penstock.engine.slot import SlotReport
from penstock.engine.steps import spark_schema
from penstock.engine.stream import CLOCK
from penstock.engine.trial import Batch, BatchResult, collected
from penstock.errors import TerminalError
from penstock.model import RAW_SCHEMA, BatchToken

_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # From the keys of a join it would infer that they are not null, and leave out the records that only tell the time.
    "spark.sql.constraintPropagation.enabled": "false",
}


def run_stream(pipeline: Pipeline, given: Given, session: Any, batches: Sequence[Batch]) -> list[BatchResult]:
    """Carry the batches: each is one of the query, with those after it in which only time has passed."""
    with tempfile.TemporaryDirectory(prefix="penstock-trial-") as folder:
        return list(_StreamTrial(pipeline, given, session, Path(folder)).run(batches))


class _StreamTrial:
    def __init__(self, pipeline: Pipeline, given: Given, session: Any, folder: Path) -> None:
        self.pipeline, self.given, self.session, self.folder = pipeline, given, session, folder
        self.checkpoint = SparkCheckpoint(str(folder / "checkpoint"))

    def run(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        records = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
        every = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA), *records])
        pipeline = replace(self.pipeline, reader=MemoryReader(every, self.given))
        for name, value in {**STATE_SETTINGS, **_SETTINGS}.items():
            self.session.conf.set(name, reveal(pipeline.config.spark).get(name, value))
        choose_file_manager(self.session, self.checkpoint.path)
        flows = CurrentFlows(pipeline, self.session, lambda text: None, self.checkpoint.late_by)
        flows.prepare()
        stream = flows.new_stream()
        assert stream is not None, "asked only of a pipeline with state"
        stream.clock = True
        inputs = stream.layout.inputs
        frame = stream.frame(self.session, {one.name: self._raw(one) for one in inputs})
        mode = "update" if stream.layout.changes else "append"
        for number, batch in enumerate(batches):
            for one in inputs:
                self._send(one, batch, number)
            yield self._batch(flows, frame.writeStream.outputMode(mode), batch)

    def _batch(self, flows: CurrentFlows, writer: Any, batch: Batch) -> BatchResult:
        """Run the query until it has nothing left to do, and put together what its batches gave."""
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
        return replace(collected(self.pipeline, reports), state=self._state(query))

    def _state(self, query: Any) -> pa.Table:
        """The rows of state that are left; with their keys, where one step keeps them."""
        operators = query.lastProgress["stateOperators"] if query.lastProgress is not None else []
        count = sum(one["numRowsTotal"] for one in operators)
        if len(operators) == 1 and operators[0]["operatorName"] in ("stateStoreSave", "dedupeWithinWatermark"):
            kept = self.session.read.format("statestore").load(self.checkpoint.path)
            keys: pa.Table = kept.selectExpr("key.*").toArrow()
            return keys
        return pa.table({"row": pa.array(range(count), pa.int64())})

    def _raw(self, one: StreamInput) -> Any:
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
        if one.watermark is None:
            raise TerminalError(
                "TRIAL_WITHOUT_TIME",
                "letting time pass needs a watermark: it is event time that passes",
                hint="take `advance` out of the case",
            )
        last = self.checkpoint.last_begun()
        mark = self.checkpoint.watermark(last) if last is not None else 0
        newest = timedelta(milliseconds=mark) + one.watermark.delay + span
        tick = {"topic": CLOCK, "partition": 0, "offset": 0, "timestamp": round(newest.total_seconds() * 1_000_000)}
        return pa.RecordBatch.from_pylist([tick], schema=RAW_SCHEMA)
