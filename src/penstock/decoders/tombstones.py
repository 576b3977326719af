"""Tombstones as deletes: the record's key says which row goes.

The key is a JSON object with the key columns or, for a single column, its plain text or JSON value. What does not
give the key columns is a bad record, with the code `TOMBSTONE_KEY`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.decoders.json import JsonDecoder
from penstock.model import BAD_SCHEMA, COORDINATES_FIELD, DELETES, RAW_SCHEMA, Split, bad_records

CODE = "TOMBSTONE_KEY"


@dataclass(frozen=True)
class TombstoneDecoder:
    """Implements `contracts.Decoder` over records without a value, for sinks that merge by `keys`."""

    keys: pa.Schema

    def __reduce__(self) -> tuple[object, ...]:
        return TombstoneDecoder, (self.keys,)

    @cached_property
    def schema(self) -> pa.Schema:
        """The key columns, the coordinates, and the mark of a delete."""
        fields = [field.with_nullable(True) for field in self.keys]
        return pa.schema([*fields, COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split tombstones into deletes and bad records."""
        objects = pa.array([self._object(key) for key in raw.column("key").to_pylist()], pa.binary())
        read = self._decoder.decode(raw.set_column(RAW_SCHEMA.get_field_index("value"), "value", objects))
        deletes = [*read.good.columns, pa.repeat(pa.scalar(True), read.good.num_rows)]
        return Split(pa.RecordBatch.from_arrays(deletes, schema=self.schema), self._refused(raw, read.bad))

    @cached_property
    def _decoder(self) -> JsonDecoder:
        return JsonDecoder(pa.schema([field.with_nullable(False) for field in self.keys]))

    def _object(self, key: bytes | None) -> bytes | None:
        if key is None or key.lstrip().startswith(b"{") or len(self.keys) > 1:
            return key
        [column] = self.keys
        name = json.dumps(column.name).encode()
        if types.is_string(column.type) and not key.startswith(b'"'):
            text = key.decode(errors="surrogateescape")
            # What is not UTF-8 stays so, and is refused with the reason.
            return b"{%b:%b}" % (name, json.dumps(text, ensure_ascii=False).encode(errors="surrogateescape"))
        return b"{%b:%b}" % (name, key)

    def _refused(self, raw: pa.RecordBatch, bad: pa.RecordBatch) -> pa.RecordBatch:
        """The tombstones themselves, with why their key was not understood."""
        if not bad.num_rows:
            return pa.RecordBatch.from_pylist([], schema=BAD_SCHEMA)
        wanted = ", ".join(self.keys.names)
        places = {at: place for place, at in enumerate(_positions(raw))}
        records = raw.take(pa.array([places[at] for at in _positions(bad)]))
        reasons = pc.coalesce(bad.column("message"), pa.scalar(""))
        lead = f"the key of this tombstone does not give {wanted}: "
        messages = pc.binary_join_element_wise(pa.scalar(lead), reasons, "")
        return bad_records(records, "decode", pa.repeat(pa.scalar(CODE), records.num_rows), messages)


def _positions(rows: pa.RecordBatch) -> list[tuple[str, int, int]]:
    return list(zip(*(rows.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True))
