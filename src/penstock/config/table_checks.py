"""What has to hold of the tables that rows are joined with: their names, their columns, who uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.config.ddl import ColumnsError, read_columns
from penstock.config.everyday import EnrichConfig
from penstock.config.expressions import ExpressionError, read_query
from penstock.config.flows import flows
from penstock.config.parts import Parts
from penstock.config.problems import Path, did_you_mean
from penstock.config.tables import CsvTableConfig, JsonTableConfig
from penstock.config.transforms import SqlConfig, TransformConfig


def check_tables(parts: Parts) -> None:
    """Report everything that is wrong with the tables and their names in the steps."""
    for name, table in parts.tables.items():
        if name.lower() == "input":
            message = '"input" is the name of the rows themselves'
            parts.report(("tables", name), message, hint="give the table another name", at_key=True)
        if isinstance(table, CsvTableConfig | JsonTableConfig):
            try:
                read_columns(table.columns)
            except ColumnsError as error:
                parts.report(("tables", name, "schema"), error.message, offset=error.offset, hint=error.hint)
    for step, path in _steps(parts):
        if isinstance(step, EnrichConfig):
            _known(parts, step.enrich.table, (*path, "enrich", "table"))
            _check_columns(parts, step, (*path, "enrich"))
        elif isinstance(step, SqlConfig):
            try:
                named = read_query(step.sql).tables
            except ExpressionError:
                continue
            for name in named:
                at = re.search(rf"\b{re.escape(name)}\b", step.sql)
                _known(parts, name, (*path, "sql"), fold=True, offset=at.start() if at else None)


def _known(parts: Parts, name: str, path: Path, *, fold: bool = False, offset: int | None = None) -> None:
    names = list(parts.tables)
    if name in names or (fold and name.lower() in map(str.lower, names)) or ("tables",) in parts.file.broken:
        return
    context = [f"tables: {', '.join(names) or 'none'}"]
    hint = did_you_mean(name, names) or "describe it under tables:"
    parts.report(path, f'there is no table "{name}"', context=context, hint=hint, offset=offset)


def _check_columns(parts: Parts, step: EnrichConfig, path: Path) -> None:
    """Where the file itself says what columns a table has."""
    table = parts.tables.get(step.enrich.table)
    if not isinstance(table, CsvTableConfig | JsonTableConfig):
        return
    try:
        columns = [column.name for column in read_columns(table.columns)]
    except ColumnsError:
        return
    for key, wanted in (("on", step.enrich.on), ("take", step.enrich.take or {})):
        for column in wanted.values():
            if column not in columns:
                context = [f"columns of {step.enrich.table}: {', '.join(columns)}"]
                message = f'table {step.enrich.table} has no column "{column}"'
                parts.report((*path, key), message, context=context, hint=did_you_mean(column, columns), at_key=True)


def _steps(parts: Parts) -> Iterator[tuple[TransformConfig, Path]]:
    for flow in flows(parts):
        for side in flow.sides:
            for index, step in enumerate(side.transforms):
                yield step, (*side.path, "transforms", index)
        for index, own in enumerate(flow.transforms):
            if own is not None:
                yield own, (*flow.path, "transforms", index)
