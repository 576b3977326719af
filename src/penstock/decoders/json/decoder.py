"""The JSON format: one strict object a record, bare or after the header of a schema registry.

The columns are given, and a schema id does not change them: it is only checked to be one of the subject's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.batch import (
    DEFAULT_MAX_BYTES,
    Group,
    RecordDecoder,
    Screened,
    Tombstones,
    as_texts,
    decode_batch,
)
from penstock.decoders.framing import CONFLUENT, by_schema, unframe
from penstock.decoders.json.block import JsonFormat, find_readable
from penstock.decoders.json.reason import ExtraFields
from penstock.decoders.json.values import is_supported
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD, Split
from penstock.registry import RegistrySettings

_EXTRA_TYPE = pa.map_(pa.string(), pa.string())

JsonFraming = Literal["confluent", "none"]


@dataclass(frozen=True)
class JsonDecoder(RecordDecoder):
    """Strict JSON objects to columns. NOT NULL holds at every level; with tombstones passed on, below the top.

    `extra_fields` is about fields that the schema does not name: at the top level for `keep`, which puts them
    into a map column (NULL where there are none), at every level for `quarantine`. With the framing `confluent` and no
    registry the ids are ignored. Bad records keep their header.
    """

    columns: pa.Schema
    extra_fields: ExtraFields = "ignore"
    extra_column: str = "_extra"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES
    framing: JsonFraming = "none"
    registry: RegistrySettings | None = None
    subject: str | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        names = [*self.columns.names, COORDINATES, *([self.extra_column] if self.extra_fields == "keep" else [])]
        for field in self.columns:
            if not is_supported(field.type):
                raise DefinitionError(
                    "DECODE_TYPE", f"column {field.name}: JSON cannot fill a column of type {field.type}"
                )
            if names.count(field.name) > 1:
                raise DefinitionError("DECODE_COLUMN", f"column {field.name}: the name is taken")

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, the extra fields where they are kept, and the coordinates."""
        fields = list(self.columns)
        if self.extra_fields == "keep":
            fields.append(pa.field(self.extra_column, _EXTRA_TYPE))
        if self.tombstones == "pass":
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema([*fields, COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        return decode_batch(raw, self.schema, self.tombstones, self.max_bytes, self._groups)

    def _groups(self, screened: Screened) -> Iterator[Group]:
        if self.framing == "none":
            bodies = [(screened.values, screened.rows)]
        else:
            framed = unframe(screened.values, screened.rows, CONFLUENT, screened.reasons)
            found = by_schema(framed, self.registry, self.subject, self.frozen, screened.reasons)
            bodies = [(values, rows) for _, values, rows in found]
        for values, rows in bodies:
            texts, rows = as_texts(values, rows, screened.reasons)
            trimmed, readable = find_readable(texts)
            if pc.all(readable, min_count=0).as_py():
                yield self._format, trimmed, rows
            else:
                odd = pc.invert(readable)
                yield self._format, trimmed.filter(readable), rows.filter(readable)
                yield self._single_format, texts.filter(odd), rows.filter(odd)

    @cached_property
    def _format(self) -> JsonFormat:
        return JsonFormat(self.columns, self.extra_fields, pa.schema(list(self.schema)[:-1]))

    @cached_property
    def _single_format(self) -> JsonFormat:
        return JsonFormat(self.columns, self.extra_fields, pa.schema(list(self.schema)[:-1]), one_by_one=True)
