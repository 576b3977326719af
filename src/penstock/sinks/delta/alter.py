"""A table given the columns and the types that rows need: by delta-rs where it can, else by Spark SQL.

delta-rs neither changes a type nor writes to a table whose types were changed (the feature `typeWidening`): from
then on every commit goes through Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as types
from deltalake import DeltaTable

from penstock.config.arrow_types import arrow_to_ddl
from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.sinks.delta.failures import EngineError, engine_errors, sink_failure
from penstock.sinks.delta.names import quoted
from penstock.sinks.delta.schema import lacking_fields
from penstock.sinks.evolution import Fit

CHANGING = "changing the table's columns"


def add_by_delta_rs(table: DeltaTable, fit: Fit) -> None:
    """Add what the table lacks; it must not bind its writers to Spark."""
    table.alter.add_columns(lacking_fields(table, fit.taken))


def alter_by_spark(sink: str, sql: SqlEngine | None, table: str, fit: Fit) -> None:
    """Add what the table lacks and widen what is too narrow. `table` is its name in a statement."""
    if sql is None:
        raise TerminalError("SINK_NEEDS_SPARK", f"sink {sink}: {CHANGING}: the sink was given no SQL engine")
    try:
        with engine_errors():
            sql.run(*alter_statements(table, fit))
    except EngineError as error:
        raise sink_failure(sink, CHANGING, error) from error


def alter_statements(table: str, fit: Fit) -> Iterator[str]:
    """The statements that change the table, in one commit each."""
    if fit.added:
        added = (f"{quoted(*each.path)} {spark_type(each.type)}" for each in fit.added)
        yield f"ALTER TABLE {table} ADD COLUMNS ({', '.join(added)})"
    if fit.widened:
        yield f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        widened = (f"{quoted(*each.path)} TYPE {spark_type(each.type)}" for each in fit.widened)
        yield f"ALTER TABLE {table} ALTER COLUMN {', '.join(widened)}"


def spark_type(kind: pa.DataType) -> str:
    """A type in a Spark SQL statement. Whatever is inside of it may be null."""
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(_members(list(kind)))}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    return arrow_to_ddl(kind)


def _members(fields: Sequence[pa.Field]) -> Iterator[str]:
    return (f"{quoted(each.name)}: {spark_type(each.type)}" for each in fields)
