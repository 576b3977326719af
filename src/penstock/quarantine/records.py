"""Reads the quarantine without Spark: from its table or from its topic, into the same columns.

The result has the columns of `QUARANTINE_SCHEMA`, `refused_by` out of the stage, and `schema_id` where it is wanted.
There is one row for each identity: of several with the same topic, partition, offset and `refused_by` the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from penstock.contracts import Reader
from penstock.errors import MissingError
from penstock.kafka import Cluster, KafkaSettings, Subscription
from penstock.model import HEADERS, QUARANTINE_SCHEMA, RAW_SCHEMA, OffsetRange
from penstock.storage import Storage

SCHEMA_ID = "schema_id"
"""The schema id of the Confluent framing: the four bytes after a first byte that is zero."""
REFUSED_BY = "refused_by"
"""The sinks, or the route, that lack the record: what follows the stage. Null where all of them do."""
PLACE = ("topic", "partition", "offset")
IDENTITY = (*PLACE, REFUSED_BY)
"""Two rows with the same values here are about the same failure."""
BODY = ("key", "value", "headers")
FACTS = tuple(name for name in QUARANTINE_SCHEMA.names if name not in BODY)
"""The columns other than the record's own bytes: in a topic they are headers, in this order."""

Place = tuple[str, int, int]


class Held(Protocol):
    """A table or topic that stores rows of several pipelines."""

    @property
    def target(self) -> str:
        """Where it is, for people."""
        ...

    def rows(self, columns: Sequence[str], pipelines: str, place: Place | None = None) -> pl.DataFrame:
        """The rows of a pipeline, and those that its replays left before 0.8; with `place` those of one record."""
        ...


@dataclass(frozen=True)
class HeldInTable:
    """Rows in a Delta table. One that is not there yet has none."""

    path: str
    schema: pa.Schema = QUARANTINE_SCHEMA
    storage: Storage = field(default_factory=Storage)

    @property
    def target(self) -> str:
        """The table's path."""
        return self.path

    def rows(self, columns: Sequence[str], pipelines: str, place: Place | None = None) -> pl.DataFrame:
        """Read by delta-rs's own engine, which knows deletion vectors. A column that the table lacks is null."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        try:
            table = DeltaTable(self.path, storage_options=self.storage.for_delta_at(self.path))
            there = {field.name for field in table.schema().fields}
            names = ", ".join(f'"{name}"' for name in columns if name in there)
            found = _query(table, f"SELECT {names} FROM held WHERE {of_pipeline(pipelines)}{_at(place)}")
        except TableNotFoundError:
            return empty_frame(wanted)
        except (DeltaError, OSError) as error:
            raise _unreadable(self.path, error) from error
        for number, one in enumerate(wanted):
            if one.name not in found.column_names:
                found = found.add_column(number, one, pa.nulls(found.num_rows, one.type))
        return frame_of(found)


def query_table(path: str, storage: Storage, asked: str, doing: str) -> pa.Table | None:
    """The result of SQL over the rows of a table, which is the relation `held`; None where there is no table."""
    try:
        table = DeltaTable(path, storage_options=storage.for_delta_at(path))
        return _query(table, asked)
    except TableNotFoundError:
        return None
    except Exception as error:
        raise MissingError(
            "TABLE_UNREACHABLE",
            f"{doing}: {type(error).__name__}",
            context={"looked at": path, "cause": str(error).partition("\n")[0]},
        ) from error


def _query(table: DeltaTable, sql: str) -> pa.Table:
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("held", table).execute(sql)).read_all()


@dataclass(frozen=True)
class HeldInTopic:
    """Bad records in a topic, up to the current end of its log. The facts about them are in their headers."""

    topic: str
    settings: KafkaSettings
    reader: Reader

    @property
    def target(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic} at {self.settings.brokers}"

    def rows(self, columns: Sequence[str], pipelines: str, place: Place | None = None) -> pl.DataFrame:
        """Read the whole topic: it has no index."""
        frames = [_quarantined(batch) for batch in whole_topic(self.topic, self.settings, self.reader)]
        found = pl.concat([empty_frame(QUARANTINE_SCHEMA), *frames])
        mine = (pl.col("pipeline") == pipelines) | pl.col("pipeline").str.starts_with(f"{pipelines}.replay-")
        if place is not None:
            mine &= pl.all_horizontal(pl.col(name) == value for name, value in zip(PLACE, place, strict=True))
        return found.filter(mine).select(columns)


def whole_topic(topic: str, settings: KafkaSettings, reader: Reader) -> Iterable[pa.RecordBatch]:
    """The records of a topic up to the current end of its log; none where there is no such topic."""
    cluster = Cluster(settings)
    try:
        partitions = cluster.partitions(Subscription((topic,)))
    except MissingError as error:
        if error.code != "TOPIC_MISSING":
            raise
        return ()
    bounds = cluster.bounds(partitions)
    return reader.read([OffsetRange(at.topic, at.partition, log.start, log.end) for at, log in bounds.items()])


def read_records(held: Held, pipeline: str, columns: Sequence[str], place: Place | None = None) -> pl.DataFrame:
    """The oldest row of each identity, in the order of quarantine.

    Replays of versions before 0.8 left their rejects here too, under names of their own: a row of the pipeline itself
    goes before one of those.
    """
    derived = {REFUSED_BY: (_refused_by(), "stage"), SCHEMA_ID: (_schema_id(), "value")}
    asked = dict.fromkeys([*columns, *IDENTITY, "quarantined_at", "pipeline"])
    read = dict.fromkeys(derived[name][1] if name in derived else name for name in asked)
    found = held.rows(list(read), pipeline, place)
    found = found.with_columns(**{name: made for name, (made, _) in derived.items() if name in asked}).select(
        list(asked)
    )
    own = pl.col("pipeline") != pipeline
    oldest = found.sort(own, "quarantined_at", *PLACE).unique(IDENTITY, keep="first", maintain_order=True)
    return oldest.sort("quarantined_at", *PLACE)


def frame_of(rows: pa.Table) -> pl.DataFrame:
    """Arrow rows as a frame."""
    return pl.DataFrame(pl.from_arrow(rows))


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """A frame without rows. Made of nulls, because most other ways to make an array load pandas, which takes long."""
    return frame_of(pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))


def as_text(values: pl.Series) -> pl.Series:
    """Bytes as text; null where they are not UTF-8."""
    try:
        return values.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series(values.name, [_decoded(value) for value in values], pl.String)


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def raw_records(frame: pl.DataFrame) -> pa.Table:
    """The records themselves, in `RAW_SCHEMA`."""
    return frame.select(RAW_SCHEMA.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(RAW_SCHEMA)


def _refused_by() -> pl.Expr:
    """A stage is one word. Where only some refused the record, their names follow it."""
    return pl.col("stage").str.extract(r"^\S+ (.+)$")


def _schema_id() -> pl.Expr:
    value = pl.col("value")
    framed = (value.bin.size() >= 5) & (value.bin.slice(0, 1) == b"\0")
    number = value.bin.slice(1, 4).bin.reinterpret(dtype=pl.UInt32, endianness="big")
    return pl.when(framed).then(number).cast(pl.Int64)


def _quarantined(raw: pa.RecordBatch) -> pl.DataFrame:
    """The records of the topic as rows: the headers that came first as columns, the others as the record's own.

    What others have put into the topic has no pipeline, and no row of it is asked for.
    """
    headers = raw.column("headers")
    ends = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).cumsum()
    keys, values = (pc.list_flatten(headers).field(part) for part in ("key", "value"))
    at = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    facts: dict[str, pl.Series] = {}
    for name in FACTS:
        here = pa.array(np.where(at < ends, at, -1), mask=at >= ends)
        told = pc.fill_null(pc.equal(keys.take(here), name), False)
        text = pc.if_else(told, values.take(here), pa.scalar(None, pa.binary()))
        facts[name] = as_text(pl.Series(pl.from_arrow(text)))
        at = at + told.to_numpy(zero_copy_only=False)
    body = {name: pl.from_arrow(raw.column(name)) for name in ("key", "value")}
    found = pl.DataFrame({**facts, **body, "headers": pl.from_arrow(_own_headers(keys, values, at, ends))})
    kinds = empty_frame(QUARANTINE_SCHEMA).schema
    return found.select(_typed(name, kind) for name, kind in kinds.items())


def _typed(name: str, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Datetime:
        return pl.col(name).str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    return pl.col(name).cast(kind, strict=False)


def _own_headers(keys: pa.Array, values: pa.Array, at: np.ndarray, ends: np.ndarray) -> pa.Array:
    """What is left of the headers of each record from `at` on; null where nothing is."""
    places = np.concatenate([np.arange(start, end) for start, end in zip(at, ends, strict=True)] or [ends])
    own = pa.StructArray.from_arrays([column.take(pa.array(places, pa.int64())) for column in (keys, values)],
                                     fields=list(HEADERS.value_type))  # fmt: skip
    offsets = pa.array(np.concatenate([[0], (ends - at).cumsum()]), pa.int32())
    return pa.ListArray.from_arrays(offsets, own, mask=pa.array(ends == at)).cast(HEADERS)


def of_pipeline(name: str) -> str:
    """The condition of SQL for the rows of a pipeline, and those that its replays left before 0.8."""
    return f"(pipeline = {_quoted(name)} OR starts_with(pipeline, {_quoted(name + '.replay-')}))"


def _at(place: Place | None) -> str:
    if place is None:
        return ""
    topic, partition, offset = place
    return f' AND topic = {_quoted(topic)} AND "partition" = {int(partition)} AND "offset" = {int(offset)}'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _unreadable(target: str, error: Exception) -> MissingError:
    return MissingError(
        "QUARANTINE_UNREADABLE",
        f"reading {target}: it cannot be read",
        context={"reason": str(error).partition("\n")[0]},
        hint="look at quarantine.table in the pipeline file",
    )
