"""Tables that are larger than their memory, as frames by Spark's own readers: the same columns in the same types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.config.tables import (
    CsvTableConfig,
    DeltaTableConfig,
    IcebergTableConfig,
    JsonTableConfig,
    LookupConfig,
    ParquetTableConfig,
    PostgresTableConfig,
)
from penstock.errors import MissingError
from penstock.storage import Storage
from penstock.tables import LookupTable


def spark_frame(
    session: Any, config: LookupConfig, table: LookupTable, version: str, storage: Storage = Storage()
) -> Any:
    """The table as a frame, not read yet. A value that is not of its column's type fails the query that meets it."""
    match config:
        case DeltaTableConfig():
            number = version.partition(" ")[0]
            return session.read.format("delta").option("versionAsOf", number).load(config.path)
        case IcebergTableConfig():
            return _iceberg(session, config, table.name, storage)
        case ParquetTableConfig():
            schema = table.schema()
            return _typed(session, schema).parquet(config.path).select([_quoted(name) for name in schema.names])
        case CsvTableConfig():
            schema = table.schema()
            reader = _typed(session, _in_file_order(table, schema)).options(header=True, enforceSchema=False)
            frame = reader.options(mode="FAILFAST", multiLine=True).csv(config.path)
            return frame.select([_quoted(name) for name in schema.names])
        case JsonTableConfig():
            return _typed(session, table.schema()).option("mode", "FAILFAST").json(config.path)
        case PostgresTableConfig():
            raise MissingError(
                "TABLE_TOO_LARGE",
                f"table {table.name}: it is larger than its `memory`, and Spark does not read PostgreSQL here",
                context={"table": table.target, "memory": f"{config.memory:,} bytes"},
                hint="raise `memory`, or keep a copy of the table in Delta or Parquet",
            )


def _typed(session: Any, schema: pa.Schema) -> Any:
    return session.read.schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _in_file_order(table: LookupTable, schema: pa.Schema) -> pa.Schema:
    """The columns as the files have them: Spark goes by their places, whatever the first line names."""
    from penstock.tables.parquet import CsvLookup

    assert isinstance(table, CsvLookup)
    fields = {field.name: field for field in schema}
    return pa.schema([fields.get(name, pa.field(name, pa.string())) for name in table.names_in_files()])


def _iceberg(session: Any, config: IcebergTableConfig, name: str, storage: Storage) -> Any:
    from penstock.sinks.iceberg import open_catalog

    catalog = open_catalog(config.catalog, config.warehouse, storage)
    asked = catalog.spark_settings(config.warehouse)
    where = f"spark.sql.catalog.{catalog.name}.warehouse"
    held = session.conf.get(where, None)
    if held not in (None, asked[where]):
        raise MissingError(
            "TABLE_CATALOG_TAKEN",
            f"table {name}: it is larger than its `memory`, and Spark already uses another Iceberg warehouse",
            context={"table": config.warehouse, "in use": held},
            hint="raise `memory`, or keep the tables in one warehouse",
        )
    for key, value in asked.items():
        session.conf.set(key, value)
    return session.table(".".join(map(_quoted, [catalog.name, *config.table.split(".")])))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
