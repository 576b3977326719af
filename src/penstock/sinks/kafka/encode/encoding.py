"""Values and keys by a schema of a registry: which schema, under which id, and the framed bytes of each row.

On the driver the schema is made, given, or taken from the registry, looked up there and registered where that is
asked for; what goes to the tasks is a small encoder with the id in it. In a task no registry is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TerminalError
from penstock.model import COMPUTED, COORDINATES, Refusal
from penstock.sinks.kafka.encode.shapes import Misfit
from penstock.sinks.merging import refusals

if TYPE_CHECKING:
    from penstock.registry import RegistrySettings

MAGIC = b"\0"
Format = Literal["avro", "protobuf", "json"]
Role = Literal["value", "key"]


@dataclass(frozen=True)
class Encoding:
    """How the file wants values or keys written."""

    format: Format
    registry: RegistrySettings
    subject: str | None = None
    """Left out: the topic's name and the role, `orders-value`."""
    register: bool = True
    """Register a schema that is not there. If not, it must be there; with no `schema`, the subject's latest is used."""
    schema: str | None = None
    """The text of the schema to write by. Left out: it is made from the columns."""
    message: str | None = None
    """The name of the message or record, with its package. Left out: made from the names of pipeline and sink."""
    columns: tuple[str, ...] | None = None
    """The columns that are written; left out, all of the row. A single one in Avro is its type, not a record."""


class Rows(Protocol):
    """Rows to bytes in one format, without the framing. It must pickle."""

    @property
    def slow(self) -> str | None:
        """Why it goes row by row, where it does."""
        ...

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows that the schema cannot hold."""
        ...

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The bytes of each row; `misfits` must be out. A null is a record without that value or key."""
        ...


@dataclass(frozen=True)
class Encoder:
    """Writes some columns of the rows in the registry's framing. Made by `opening.open_encoder`."""

    role: Role
    columns: pa.Schema
    whole: bool
    """The columns are all that the row has: a further one is not to be lost silently."""
    prefix: bytes
    rows: Rows

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows that cannot be written."""
        return self.rows.misfits(self._chosen(rows))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The framed bytes of each row."""
        bodies = self.rows.encode(self._chosen(rows))
        return pc.binary_join_element_wise(pa.scalar(self.prefix), bodies, pa.scalar(b"")).cast(pa.binary())

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as they were when the schema was made; one that is not there is null."""
        names = rows.schema.names
        if self.whole:
            strange = [
                name for name in own_columns(rows.schema, keep_coordinates=False).names if name not in self.names
            ]
            if strange:
                raise TerminalError(
                    "SINK_SCHEMA_MISMATCH",
                    f"encoding the {self.role}: rows have a column that its schema was not made for",
                    context={"columns": ", ".join(strange), "schema": ", ".join(self.names)},
                    hint="start the run again: the schema is then made for these columns",
                )
        columns = [
            rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(columns, self.names)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns.names)


@dataclass(frozen=True)
class Encoders:
    """What a sink's tasks write values and keys with; none where they are not by a registry's schema."""

    value: Encoder | None = None
    key: Encoder | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know."""
        there = [encoder for encoder in (self.value, self.key) if encoder is not None and encoder.rows.slow]
        return tuple(f"the {encoder.role} is encoded row by row, slowly: {encoder.rows.slow}" for encoder in there)

    def screen(self, sink: str, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """The rows that can be written, and a refusal for each other one: of several reasons the first counts."""
        refused: list[Refusal] = []
        for encoder in (self.value, self.key):
            while encoder is not None and (misfit := next(encoder.misfits(rows), None)) is not None:
                bad = pa.array(misfit.rows)
                message = f"sink {sink}: the {encoder.role}: {misfit.message}"
                refused += refusals(sink, rows.filter(bad), misfit.code, message)
                rows = rows.filter(pc.invert(bad))
        return rows, refused


@dataclass(frozen=True)
class Encodings:
    """What a sink is to write by a registry's schema, and as whom."""

    pipeline: str
    sink: str
    topic: str | None
    keep_coordinates: bool = False
    value: Encoding | None = None
    key: Encoding | None = None

    def check(self, schema: pa.Schema) -> None:
        """Only look: raise where rows of `schema` cannot be written. An incompatible schema shows when registered."""
        self._both(schema, register=False)

    def open(self, schema: pa.Schema) -> Encoders:
        """The encoders for rows of `schema`; schemas that are not in the registry are put there, if that is allowed."""
        return self._both(schema, register=True)

    def _both(self, schema: pa.Schema, *, register: bool) -> Encoders:
        if self.value is None and self.key is None:
            return Encoders()
        # The libraries of the formats are loaded only where one is used.
        from penstock.sinks.kafka.encode.opening import open_encoder

        value, key = self.value, self.key
        return Encoders(
            None if value is None else open_encoder(self, "value", value, schema, register=register),
            None if key is None else open_encoder(self, "key", key, schema, register=register),
        )


def own_columns(schema: pa.Schema, *, keep_coordinates: bool) -> pa.Schema:
    """The columns of the rows that are data: not computed for the sink, and the coordinates only if kept."""
    kept = [f for f in schema if not f.name.startswith(COMPUTED) and (keep_coordinates or f.name != COORDINATES)]
    return pa.schema(kept)
