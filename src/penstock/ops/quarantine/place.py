"""The bad records of a pipeline and their marks, in tables or topics, and a selection of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import polars as pl
import pyarrow as pa

from penstock import config as cfg
from penstock.assembly.reaching import settings_of, storage_of
from penstock.assembly.targets import way_in
from penstock.checkpoint import checkpoint_lock
from penstock.contracts import Sink
from penstock.errors import DefinitionError, MissingError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.metrics.history import folder_beside
from penstock.model import RAW_SCHEMA, BatchToken, redrives_of
from penstock.quarantine import QUARANTINE_SCHEMA, stage_table
from penstock.quarantine.marks import MARK_SCHEMA, MarksInTopic, as_marks, read_marks, with_states
from penstock.quarantine.records import (
    FACTS,
    REFUSED_BY,
    SCHEMA_ID,
    Held,
    HeldInTable,
    HeldInTopic,
    Place,
    as_text,
    raw_records,
    read_records,
)
from penstock.readers import KafkaReader
from penstock.sinks.commit import commit, is_committed

if TYPE_CHECKING:
    from penstock.assembly.build import Pipeline
    from penstock.engine.trial import BatchResult

_REPLICAS = 3
_WHERE_SCHEMA = pa.schema(
    [
        *QUARANTINE_SCHEMA,
        pa.field(REFUSED_BY, pa.string()),
        pa.field(SCHEMA_ID, pa.int64()),
        pa.field("state", pa.string()),
        pa.field("failures", pa.int64()),
        pa.field("key_text", pa.string()),
        pa.field("value_text", pa.string()),
    ]
)
"""The schema for `--where`: `key_text` and `value_text` are null if the bytes are not UTF-8."""


@dataclass(frozen=True)
class Selection:
    """Some of the records. Times are those of the quarantine, and half-open."""

    codes: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None
    limit: int | None = None
    """The oldest ones."""


@dataclass(frozen=True)
class QuarantinePlace:
    """The quarantine of one pipeline. If it is a table and a topic, the table is read."""

    config: cfg.PipelineConfig
    records: Held
    marks: Held
    settings: KafkaSettings

    @property
    def folder(self) -> str:
        """Where redrives note how far they are: on a local disk, wherever the checkpoint is."""
        return str(folder_beside(self.config.checkpoint, "redrives"))

    def read(
        self, columns: Sequence[str] = FACTS, place: Place | None = None, marks: pl.DataFrame | None = None
    ) -> pl.DataFrame:
        """The records with their states, the oldest first; by the present marks, unless some are given."""
        assert self.config.quarantine is not None
        columns = list(dict.fromkeys([*columns, "stage", "code"]))
        records = read_records(self.records, self.config.name, columns, place)
        marks = self.read_marks() if marks is None else marks
        return with_states(records, marks, self.config.quarantine.max_redrives)

    def read_marks(self) -> pl.DataFrame:
        """Every mark."""
        return read_marks(self.marks, self.config.name)

    def selected(self, selection: Selection, columns: Sequence[str] = FACTS) -> pl.DataFrame:
        """The selected records with their states."""
        return chosen(self.read(columns_for(selection, columns)), selection)

    def marking(self, name: str) -> Sink:
        """A sink for marks: its name keeps the commits of redrives and of drops apart. A topic for it is made."""
        pipeline = redrives_of(self.config.name)
        if isinstance(self.marks, HeldInTable):
            from penstock.sinks import DeltaSink

            return DeltaSink(
                pipeline,
                name,
                self.marks.path,
                evolve="add_columns",
                keep_coordinates=False,
                storage=self.marks.storage,
            )
        from penstock.sinks.kafka import KafkaSink

        assert isinstance(self.marks, MarksInTopic)
        admin = TopicAdmin(self.settings)
        # If a mark expires before its record, the record could be redriven twice.
        admin.create(self.marks.topic, 1, min(_REPLICAS, admin.brokers()), {"retention.ms": "-1"})
        return KafkaSink(pipeline, name, self.settings, topic=self.marks.topic, slots=1)

    def mark(self, name: str, marks: pl.DataFrame, *, run: str, query_id: str) -> None:
        """Append marks as the commit of a query: once, however often it is called."""
        token = BatchToken(redrives_of(self.config.name), query_id, 0, ())
        write_marks(self.marking(name), token, marked_by(self.config.name, run, marks))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from redriving or dropping at the same time."""
        with ExitStack() as stack:
            try:
                stack.enter_context(checkpoint_lock(self.folder))
            except MissingError as error:
                if error.code != "CHECKPOINT_IN_USE":
                    raise
                raise MissingError(
                    "REDRIVE_RUNNING",
                    f"pipeline {self.config.name}: another process is redriving or dropping its records",
                    context=error.context,
                    hint="wait until it ends; the live pipeline can keep running",
                ) from None
            yield


def marked_by(pipeline: str, run: str, marks: pl.DataFrame) -> pl.DataFrame:
    """Marks of records with the columns for their author and time."""
    return marks.with_columns(pipeline=pl.lit(pipeline), run=pl.lit(run), marked_at=pl.lit(datetime.now(UTC)))


def write_marks(sink: Sink, token: BatchToken, marks: pl.DataFrame) -> None:
    """Append marks with a token: once, however often it is called. The table is created if missing."""
    sink.prepare(MARK_SCHEMA)
    if not is_committed(sink, sink.position(), token):
        commit(sink, token, [stage_table(sink, token, as_marks(marks))])


def try_records(pipeline: Pipeline, records: pl.DataFrame) -> BatchResult:
    """What a pipeline of the direct lane makes of quarantined records; nothing is written."""
    from penstock.engine.trial import trial_of

    def no_session() -> NoReturn:
        raise AssertionError("the direct lane needs none")

    columns = [column.combine_chunks() for column in raw_records(records).columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)
    [result] = trial_of(pipeline, no_session, preview=True).run([batch])
    return result


def quarantine_of(config: cfg.PipelineConfig) -> QuarantinePlace:
    """The quarantine that the file names."""
    source, quarantine = config.source, config.quarantine
    settings = way_in(settings_of(source))
    storage = storage_of(config)
    if quarantine is not None and quarantine.table is not None:
        marks = HeldInTable(f"{quarantine.table.rstrip('/')}_redrives", MARK_SCHEMA, storage)
        return QuarantinePlace(config, HeldInTable(quarantine.table, storage=storage), marks, settings)
    if quarantine is not None and quarantine.topic is not None:
        reader = KafkaReader(settings)
        topic = HeldInTopic(quarantine.topic, settings, reader)
        return QuarantinePlace(config, topic, MarksInTopic(f"{quarantine.topic}.redrives", settings, reader), settings)
    raise MissingError(
        "QUARANTINE_MISSING",
        f"pipeline {config.name} has no quarantine: a bad record stops it",
        hint="to quarantine bad records and continue, add to the pipeline file:\nquarantine: {table: lake/quarantine}",
    )


def columns_for(selection: Selection, columns: Sequence[str] = FACTS) -> list[str]:
    """The columns that a selection needs, and some more."""
    return [*columns] if selection.where is None else [*QUARANTINE_SCHEMA.names, SCHEMA_ID, *columns]


def chosen(records: pl.DataFrame, selection: Selection) -> pl.DataFrame:
    """The selected ones among some records."""
    conditions = [
        pl.col(name).is_in(values)
        for name, values in (("code", selection.codes), ("topic", selection.topics))
        if values
    ]
    if selection.since is not None:
        conditions.append(pl.col("quarantined_at") >= selection.since)
    if selection.until is not None:
        conditions.append(pl.col("quarantined_at") < selection.until)
    found = records.filter(*conditions) if conditions else records
    found = found if selection.where is None else found.filter(_holds(selection.where, found))
    return found if selection.limit is None else found.head(selection.limit)


def _holds(condition: str, records: pl.DataFrame) -> pl.Series:
    """For which records a Spark SQL condition is true, by Arrow."""
    from penstock.transforms.expressions import NoArrowForm, compile_expression

    compiled = compile_expression(condition, _WHERE_SCHEMA, condition=True)
    if isinstance(compiled, NoArrowForm) or compiled.type != pa.bool_():
        reason = compiled.reason if isinstance(compiled, NoArrowForm) else f"it returns {compiled.type}, not BOOLEAN"
        raise DefinitionError(
            "WHERE_UNUSABLE",
            "selecting records: the condition cannot be evaluated here",
            context={"condition": condition, "reason": reason},
            hint=f"columns: {', '.join(_WHERE_SCHEMA.names)}",
        )
    texts = {f"{name}_text": as_text(records[name]) for name in ("key", "value")}
    rows = (
        records.with_columns(**texts)
        .select(_WHERE_SCHEMA.names)
        .to_arrow(compat_level=pl.CompatLevel.oldest())
        .cast(_WHERE_SCHEMA)
    )
    held = [compiled.evaluate(batch) for batch in rows.to_batches()]
    return pl.Series(pl.from_arrow(pa.chunked_array(held, pa.bool_()))).fill_null(False)
