"""The text and raw formats: every value is one string, or keys, values and headers as they are. Every record passes."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.decoders.batch import DEFAULT_MAX_BYTES, Pieces, RecordDecoder, Tombstones, as_texts, screen
from penstock.model import COORDINATES_FIELD, RAW_SCHEMA, Split, coordinates_of

_COLUMNS = ("key", "value", "headers")


@dataclass(frozen=True)
class RawDecoder(RecordDecoder):
    """Key, value and headers, untouched and uncopied."""

    @property
    def schema(self) -> pa.Schema:
        """The record's own columns, and the coordinates."""
        return pa.schema([*(RAW_SCHEMA.field(name) for name in _COLUMNS), COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """All of `raw` as good rows."""
        columns = [*(raw.column(name) for name in _COLUMNS), coordinates_of(raw)]
        return Split.all_good(pa.RecordBatch.from_arrays(columns, schema=self.schema))


@dataclass(frozen=True)
class TextDecoder(RecordDecoder):
    """Values as strings in one column. With tombstones passed on, it is null for them."""

    column: str = "value"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES

    @property
    def schema(self) -> pa.Schema:
        """The one column, and the coordinates."""
        text = pa.field(self.column, pa.string(), nullable=self.tombstones == "pass")
        return pa.schema([text, COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into strings and bad records."""
        screened = screen(raw.column("value"), self.tombstones, self.max_bytes)
        texts, rows = as_texts(screened.values, screened.rows, screened.reasons)
        pieces = Pieces(pa.schema(list(self.schema)[:-1]))
        pieces.add([texts], rows)
        pieces.add_nulls(screened.passed_tombstones)
        return pieces.split(raw, self.schema, screened.reasons)
