"""The raw format: keys, values and headers as they are. Every record passes, tombstones as null values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.model import COORDINATES_FIELD, RAW_SCHEMA, Split, coordinates_of

_COLUMNS = ("key", "value", "headers")


@dataclass(frozen=True)
class RawDecoder:
    """Key, value and headers, untouched and uncopied."""

    @property
    def schema(self) -> pa.Schema:
        """The record's own columns, and the coordinates."""
        return pa.schema([*(RAW_SCHEMA.field(name) for name in _COLUMNS), COORDINATES_FIELD])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """All of `raw` as good rows."""
        columns = [*(raw.column(name) for name in _COLUMNS), coordinates_of(raw)]
        return Split.all_good(pa.RecordBatch.from_arrays(columns, schema=self.schema))
