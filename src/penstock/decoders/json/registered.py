"""JSON behind a schema registry: the Confluent header says which schema the writer had.

The schema of the columns is the reader's, as it is without a registry; the id is checked to be one of the subject's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.framing import Framed, unframe, writer_schema
from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.reason import ExtraFields
from penstock.decoders.keyed import numbered, reasons_of, restored, with_values
from penstock.decoders.refusal import Reason, refuse
from penstock.decoders.screen import DEFAULT_MAX_BYTES, Tombstones, hold_back
from penstock.model import Split
from penstock.registry import RegistrySettings


@dataclass(frozen=True)
class RegisteredJsonDecoder:
    """Implements `contracts.Decoder`: `JsonDecoder` over framed messages. Bad records keep their header.

    Without a registry the ids are not looked at.
    """

    columns: pa.Schema
    registry: RegistrySettings | None = None
    subject: str | None = None
    extra_fields: ExtraFields = "ignore"
    extra_column: str = "_extra"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES
    frozen: bool = False

    def __post_init__(self) -> None:
        _ = self._json  # checks the columns

    def __reduce__(self) -> tuple[object, ...]:
        options = (self.extra_fields, self.extra_column, self.tombstones, self.max_bytes, self.frozen)
        return RegisteredJsonDecoder, (self.columns, self.registry, self.subject, *options)

    @property
    def schema(self) -> pa.Schema:
        """The columns, the extra fields where they are kept, and the coordinates."""
        return self._json.schema

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        held = hold_back(raw.column("value"), self.tombstones, self.max_bytes)
        framed = unframe(held.values, held.rows, held.reasons)
        bodies, rows = framed.bodies, framed.rows
        refused = self._refused(framed, held.reasons)
        if refused:
            kept = pa.array(~np.isin(framed.ids, refused))
            bodies, rows = bodies.filter(kept), rows.filter(kept)
        if len(held.passed_tombstones):
            rows = pa.concat_arrays([rows, held.passed_tombstones])
            bodies = pa.concat_arrays([bodies, pa.nulls(len(held.passed_tombstones), pa.binary())])
            order = pc.array_sort_indices(rows)
            bodies, rows = bodies.take(order), rows.take(order)
        inside = numbered(raw)
        records = inside if len(rows) == raw.num_rows else inside.take(rows)
        read = self._json.decode(with_values(records, bodies))
        return Split(restored(raw, read.good), refuse(raw, held.reasons | reasons_of(read.bad)))

    def _refused(self, framed: Framed, reasons: dict[int, Reason]) -> list[int]:
        """The ids whose records are refused, all of them with the reason."""
        if self.registry is None:
            return []
        refused: list[int] = []
        for schema_id, _, rows in framed.by_id():
            found = writer_schema(self.registry, schema_id, self.subject, self.frozen)
            if isinstance(found, Reason):
                refused.append(schema_id)
                reasons.update(dict.fromkeys(rows.to_pylist(), found))
        return refused

    @cached_property
    def _json(self) -> JsonDecoder:
        return JsonDecoder(self.columns, self.extra_fields, self.extra_column, self.tombstones, self.max_bytes)
