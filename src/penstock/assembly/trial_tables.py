"""The tables that a pipeline joins, as rows of a case file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock import config as cfg
from penstock.config.arrow_types import parse_columns
from penstock.config.cases import TableCase
from penstock.decoders import JsonDecoder
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, RAW_SCHEMA

Given = Mapping[str, TableCase | tuple[dict[str, Any], ...]]


def given_tables(config: cfg.PipelineConfig, given: Given) -> dict[str, pa.Table]:
    """Each table with the types that the case file gives, or the pipeline file, or else those that the rows show."""
    found = {}
    for name, table in given.items():
        rows = table.rows if isinstance(table, TableCase) else table
        columns = table.columns if isinstance(table, TableCase) else getattr(config.tables.get(name), "columns", None)
        found[name] = _typed(name, rows, parse_columns(columns)) if columns is not None else _as_seen(name, rows)
    return found


def _typed(name: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as JSON would be decoded: dates, times and decimals are written as text."""
    records = [
        {"value": json.dumps(row).encode(), "topic": name, "partition": 0, "offset": n} for n, row in enumerate(rows)
    ]
    split = JsonDecoder(schema, extra_fields="quarantine").decode(
        pa.RecordBatch.from_pylist(records, schema=RAW_SCHEMA)
    )
    if split.bad.num_rows:
        first = split.bad.slice(0, 1).to_pylist()[0]
        raise DefinitionError("CASE_TABLE_INVALID", f"table {name}, row {first['offset'] + 1}: {first['message']}")
    return pa.Table.from_batches([split.good]).drop_columns([COORDINATES])


def _as_seen(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    except pa.ArrowInvalid as error:
        raise DefinitionError(
            "CASE_TABLE_INVALID",
            f"table {name}: the rows do not agree on the types of their columns",
            context={"cause": str(error).splitlines()[0]},
            hint=f'say the types: {name}: {{schema: "id BIGINT, ...", rows: [...]}}',
        ) from None
    fields = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))
