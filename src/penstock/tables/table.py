"""What the runtime asks of a table, whatever it is kept in. Everything runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from penstock.errors import MissingError
from penstock.tables.types import to_plain


class LookupTable(Protocol):
    """A table that is read whole. Its types are those that decoders give.

    What is not there at the first look is missing (`TABLE_MISSING`); what was there once may come back, being
    replaced just now, and is told as passing (`TABLE_UNREACHABLE`).
    """

    @property
    def name(self) -> str:
        """The name in the pipeline file."""
        ...

    @property
    def target(self) -> str:
        """Where it is, for people."""
        ...

    def schema(self) -> pa.Schema:
        """The columns. Reads no rows."""
        ...

    def version(self) -> str:
        """What changes whenever the rows may have. Cheap: asked before every batch. `read` gives this version."""
        ...

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns; none where they take more than `most_bytes` of memory."""
        ...

    def estimated_bytes(self) -> int | None:
        """About how large the whole table is, by its metadata; none where that does not say."""
        ...


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int | None) -> pa.Table | None:
    """The batches as one table of plain types; none, and nothing more read, once they take more than `most_bytes`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(to_plain(batch, schema))
        size += held[-1].nbytes
        if most_bytes is not None and size > most_bytes:
            return None
    return pa.Table.from_batches(held, schema)


def select_columns(table: str, schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns. Raises where the table lacks one."""
    for name in columns:
        if name not in schema.names:
            raise MissingError(
                "TABLE_COLUMN_MISSING",
                f'table {table}: there is no column "{name}"',
                context={"needed": ", ".join(columns), "columns of the table": ", ".join(schema.names)},
                hint="correct the name, or add the column to the table",
            )
    return pa.schema([schema.field(name) for name in columns])
