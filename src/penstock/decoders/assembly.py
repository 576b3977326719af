"""One batch on its way back together: pieces that were decoded apart, in the order of the records again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import Reason, refuse
from penstock.model import Split, coordinates_of


class Pieces:
    """Decoded columns of `schema`, which has no coordinates, with the batch rows they came from."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces = [pa.RecordBatch.from_pylist([], schema=schema)]
        self._rows = [pa.array([], pa.uint64())]

    def add(self, columns: Sequence[pa.Array], rows: pa.UInt64Array) -> None:
        """Add some rows; `rows` says where in the batch each is from."""
        self._pieces.append(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))
        self._rows.append(rows)

    def add_nulls(self, rows: pa.UInt64Array) -> None:
        """A row of nulls for each tombstone that is passed on."""
        if len(rows):
            self.add([pa.nulls(len(rows), field.type) for field in self._schema], rows)

    def split(self, raw: pa.RecordBatch, schema: pa.Schema, reasons: Mapping[int, Reason]) -> Split:
        """The pieces in the order of `raw`, with their coordinates, and the refused records."""
        pieces = [piece for piece in self._pieces if piece.num_rows]
        good = pa.concat_batches(pieces) if len(pieces) > 1 else (pieces or self._pieces)[0]
        rows = pa.concat_arrays(self._rows)
        coordinates = coordinates_of(raw)
        if not pc.all(pc.less(rows[:-1], rows[1:]), min_count=0).as_py():
            order = pc.array_sort_indices(rows)
            good, rows = good.take(order), rows.take(order)
        if len(rows) != raw.num_rows:
            coordinates = coordinates.take(rows)
        rows_out = pa.RecordBatch.from_arrays([*good.columns, coordinates], schema=schema)
        return Split(rows_out, refuse(raw, reasons))
