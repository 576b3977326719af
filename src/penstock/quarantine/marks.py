"""Marks: what redrives and drops record about quarantined records, append-only, next to the quarantine.

In a redrive the marks are the last sink of every batch. Records that are bad again are staged to it, and its commit
marks the outcome of each record of the batch once: a mark never says more than the other sinks hold. A mark also names
the commit that brought the record into each target, so that a restore of the target to an earlier state is noticed.
`with_states` computes the state of records from their marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

import polars as pl
import pyarrow as pa

from penstock.contracts import Sink
from penstock.errors import TransientError
from penstock.model import TIMESTAMP, BatchToken, Guarantee, Manifest, OffsetRange, Position, Refusal, Rule, SlotAttempt
from penstock.quarantine.quarantine import OverSink, stage_table
from penstock.quarantine.records import (
    IDENTITY,
    PLACE,
    REFUSED_BY,
    Held,
    HeldInTopic,
    Place,
    as_text,
    empty_frame,
    frame_of,
    whole_topic,
)


class Outcome(Enum):
    """The outcome that a mark records."""

    REDRIVEN = "redriven"
    FAILED = "failed"
    DROPPED = "dropped"
    UNDROPPED = "undropped"
    RETURNED = "returned"
    """It was redriven, and the sinks in `wanted_by` have no row of it any more."""


class State(Enum):
    """The state of a quarantined record."""

    WAITING = "waiting"
    FAILED = "failed"
    PARKED = "parked"
    REDRIVEN = "redriven"
    DROPPED = "dropped"


OPEN_STATES = (State.WAITING.value, State.FAILED.value, State.PARKED.value)
"""Of records that are neither back in their targets nor given up."""

MARK_SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string()),
        pa.field("run", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("refused_by", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("code", pa.string()),
        pa.field("message", pa.string()),
        pa.field("wanted_by", pa.string()),
        pa.field("marked_at", TIMESTAMP),
        pa.field("commits", pa.string()),
    ]
)
"""`refused_by` is that of the quarantined row; `wanted_by` names the sinks that have no row of a record that failed or
was taken back; `commits` has for each sink of a redrive the number of the commit in its target, as JSON."""

_KINDS = empty_frame(MARK_SCHEMA).schema
IDENTITIES = "identities"
"""In the records of a redrive: the `refused_by` of every quarantined row that a record stands for."""
_REPORTED = ("stage", "code", "message", "topic", "partition", "offset", "refused_by")


@dataclass(frozen=True)
class MarksInTopic(HeldInTopic):
    """Marks in a topic, each a row as JSON."""

    def rows(self, columns: Sequence[str], pipelines: str, place: Place | None = None) -> pl.DataFrame:
        """Read the whole topic."""
        values = [batch.column("value") for batch in whole_topic(self.topic, self.settings, self.reader)]
        lines = as_text(pl.Series(pl.from_arrow(pa.chunked_array(values, pa.binary()))))
        kinds = {**_KINDS, "marked_at": pl.String()}
        found = lines.str.json_decode(pl.Struct(kinds)).struct.unnest()
        moments = pl.col("marked_at").str.to_datetime(time_unit="us", time_zone="UTC")
        return found.with_columns(moments).filter(pl.col("pipeline") == pipelines).select(columns)


def read_marks(held: Held, pipeline: str) -> pl.DataFrame:
    """Every mark of a pipeline."""
    return held.rows(MARK_SCHEMA.names, pipeline).filter(pl.col("pipeline") == pipeline)


def commit_numbers(sinks: Sequence[Sink]) -> dict[str, int]:
    """The number of redrive commits in each target that keeps a position."""
    exact = [sink for sink in sinks if sink.guarantee is Guarantee.EXACTLY_ONCE]
    held = {sink.name: sink.position() for sink in exact}
    return {name: position.number for name, position in held.items() if position is not None}


def as_commits(numbers: Mapping[str, int]) -> str:
    """The column `commits` of a mark."""
    return json.dumps(dict(sorted(numbers.items())), separators=(",", ":"))


def as_marks(frame: pl.DataFrame) -> pa.Table:
    """Rows in `MARK_SCHEMA`; a column that is not there is null."""
    columns = [
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in _KINDS.items()
    ]
    return frame.select(columns).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(MARK_SCHEMA)


def with_states(records: pl.DataFrame, marks: pl.DataFrame, max_redrives: int) -> pl.DataFrame:
    """The records with their state now: `state`, `failures`, `run`, `wanted_by`, `last_stage` and `last_code`.

    `run` is the one that redrove it; `wanted_by` names the sinks that have no row of it, null for all of them; where it
    failed in a redrive, the last stage and code are those of the last one.

    A record that was redriven stays so until that is taken back. Of dropping and taking that back the last counts. One
    that failed in a redrive, or was taken back, is wanted by those sinks alone that had no row of it then.
    """
    outcome, failed = pl.col("outcome"), pl.col("outcome") == Outcome.FAILED.value
    drops = outcome.filter(outcome.is_in([Outcome.DROPPED.value, Outcome.UNDROPPED.value]))
    brought = outcome.is_in([Outcome.REDRIVEN.value, Outcome.RETURNED.value])
    missing = outcome.is_in([Outcome.FAILED.value, Outcome.RETURNED.value])
    by_record = (
        marks.sort("marked_at", maintain_order=True)
        .group_by(IDENTITY, maintain_order=True)
        .agg(
            failures=failed.sum().cast(pl.Int64),
            run=pl.col("run").filter(outcome == Outcome.REDRIVEN.value).last(),
            redriven=outcome.filter(brought).last() == Outcome.REDRIVEN.value,
            dropped=drops.last() == Outcome.DROPPED.value,
            missed=missing.any(),
            left=pl.col("wanted_by").filter(missing).last(),
            failed_stage=pl.col("stage").filter(failed).last(),
            failed_code=pl.col("code").filter(failed).last(),
        )
    )
    failures = pl.col("failures").fill_null(0)
    state = (
        pl.when(pl.col("redriven"))
        .then(pl.lit(State.REDRIVEN.value))
        .when(pl.col("dropped"))
        .then(pl.lit(State.DROPPED.value))
        .when(failures >= max_redrives)
        .then(pl.lit(State.PARKED.value))
        .when(failures > 0)
        .then(pl.lit(State.FAILED.value))
        .otherwise(pl.lit(State.WAITING.value))
    )
    again = failures > 0
    joined = records.join(by_record, on=IDENTITY, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        state=state,
        failures=failures,
        wanted_by=pl.when("missed").then("left").otherwise(REFUSED_BY),
        last_stage=pl.when(again).then("failed_stage").otherwise("stage"),
        last_code=pl.when(again).then("failed_code").otherwise("code"),
    ).drop("redriven", "dropped", "missed", "left", "failed_stage", "failed_code")


@dataclass(frozen=True)
class RedriveMarks(OverSink):
    """The marks of one pass of a redrive, over an append sink."""

    SCHEMA = MARK_SCHEMA

    sink: Sink
    pipeline: str
    run: str
    records: Callable[[Sequence[OffsetRange]], pa.Table]
    """The records of a batch: their places and `identities`."""
    reaches: Mapping[str, Sequence[str]]
    """The sinks of this pass that a refusal by a sink or on a route keeps a record from."""
    batches: Sequence[tuple[OffsetRange, ...]] = ()
    """The batches of this pass."""
    everywhere: bool = True
    """Whether the pass goes to every sink that the pipeline has."""
    numbers: Callable[[], Mapping[str, int]] = dict
    """For each sink of this pass, how many commits its target holds once a batch is committed there."""

    def position(self) -> Position | None:
        """The last batch that is marked. The place of the marks stores no offsets: they are those of other targets."""
        held = self.sink.position()
        if held is None or not 0 <= held.last.batch_id < len(self.batches):
            return held
        return replace(held, last=replace(held.last, ranges=self.batches[held.last.batch_id]))

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _BadAgain:
        """In a task: collect what is bad again, without its bytes."""
        return _BadAgain(self.name, writer)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Mark every record of the batch."""
        held = self.sink.position()
        if (held.number if held is not None else 0) != (onto.number if onto is not None else 0):
            raise TransientError("SINK_COMMIT_CONFLICT", f"sink {self.name}: another redrive has marked records")
        token = replace(position.last, ranges=(), rule=Rule.FOLLOWS)
        staged = stage_table(self.sink, token, as_marks(self._marks(position.last, manifests)))
        self.sink.land(Position.after(held, token), [staged], held)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts staged."""
        self.sink.discard(token, [])

    def _marks(self, token: BatchToken, manifests: Sequence[Manifest]) -> pl.DataFrame:
        records = frame_of(self.records(token.ranges))
        marked = records.join(self._failed(manifests), on=PLACE, how="left")
        failed = pl.col("code").is_not_null()
        commits = as_commits(self.numbers())
        return marked.explode(IDENTITIES).select(
            pl.lit(self.pipeline).alias("pipeline"),
            pl.lit(self.run).alias("run"),
            pl.lit(token.batch_id).alias("batch_id"),
            *PLACE,
            pl.col(IDENTITIES).alias("refused_by"),
            pl.when(failed).then(pl.lit(Outcome.FAILED.value)).otherwise(pl.lit(Outcome.REDRIVEN.value)).alias("outcome"),
            *("stage", "code", "message", "wanted_by"),
            pl.lit(datetime.now(UTC)).alias("marked_at"),
            pl.when(failed).then(None).otherwise(pl.lit(commits)).alias("commits"),
        )  # fmt: skip

    def _failed(self, manifests: Sequence[Manifest]) -> pl.DataFrame:
        """Each record that is bad again once, with its first reason and the sinks that it did not reach."""
        blocks = [item for manifest in manifests for item in manifest.items if isinstance(item, bytes)]
        empty = empty_frame(MARK_SCHEMA).select(_REPORTED)
        bad = pl.concat([empty, *(pl.read_ipc_stream(block).select(_REPORTED) for block in blocks)])
        once = bad.group_by(PLACE, maintain_order=True).agg(
            pl.col("stage", "code", "message").first(), pl.col("refused_by").alias("refusing")
        )
        wanted = pl.Series("wanted_by", map(self._wanted_by, once["refusing"]), pl.String)
        return once.drop("refusing").with_columns(wanted)

    def _wanted_by(self, refusing: Sequence[str | None]) -> str | None:
        """The sinks of this pass that have no row of a record. One that nobody in particular refused reached none."""
        named = {name for names in refusing if names is not None for name in names.split(",")}
        if any(names is None for names in refusing) or not named <= self.reaches.keys():
            named = set(self.reaches)
        sinks = {sink for name in named for sink in self.reaches[name]}
        whole = {sink for reached in self.reaches.values() for sink in reached}
        return None if self.everywhere and sinks == whole else ",".join(sorted(sinks))


class _BadAgain:
    """Implements `contracts.Stage`: what it was given travels in the manifest."""

    def __init__(self, sink: str, writer: SlotAttempt) -> None:
        self._sink = sink
        self._writer = writer
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if rows.num_rows:
            self._batches.append(rows.select(list(_REPORTED)))
        return ()

    def finish(self) -> Manifest:
        if not self._batches:
            return Manifest(self._sink, self._writer, 0, 0)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self._batches[0].schema) as out:
            for batch in self._batches:
                out.write_batch(batch)
        block = buffer.getvalue().to_pybytes()
        return Manifest(self._sink, self._writer, sum(b.num_rows for b in self._batches), len(block), (block,))

    def abort(self) -> None:
        self._batches.clear()
