"""Tables that rows are joined with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from penstock.config.connections import SecurityConfig
from penstock.config.fields import Duration, Location, Section, Size, Text
from penstock.config.sinks import IcebergCatalogConfig


class TableConfig(Section):
    """What every table has."""

    refresh: Literal["on_change"] | Duration = Field(
        default="on_change",
        description="When the table is read again: `on_change`, seen at the next batch, or a duration.",
    )
    memory: Size = Field(
        default=256 * 1024**2,
        description="The most memory that the table may take in a task. A larger one is joined by Spark.",
    )


class DeltaTableConfig(TableConfig):
    """A Delta table."""

    type: Literal["delta"] = Field(description="The kind of table.")
    path: Location = Field(description="The folder of the table.")


class IcebergTableConfig(TableConfig):
    """An Iceberg table."""

    type: Literal["iceberg"] = Field(description="The kind of table.")
    table: Text = Field(description="The table with its namespace.", examples=["shop.customers"])
    warehouse: Location = Field(description="The folder of the warehouse.")
    catalog: IcebergCatalogConfig = Field(default=IcebergCatalogConfig(), description="As in an Iceberg sink.")


class ParquetTableConfig(TableConfig):
    """A Parquet file, or a folder of them."""

    type: Literal["parquet"] = Field(description="The kind of table.")
    path: Location = Field(description="The file or the folder.")


class CsvTableConfig(TableConfig):
    """A CSV file with a line of names, or a folder of them."""

    type: Literal["csv"] = Field(description="The kind of table.")
    path: Location = Field(description="The file or the folder.")
    columns: Text = Field(
        alias="schema", description="The columns with their types.", examples=["id BIGINT, name STRING"]
    )


class JsonTableConfig(TableConfig):
    """A file of JSON objects, one a line, or a folder of them."""

    type: Literal["json"] = Field(description="The kind of table.")
    path: Location = Field(description="The file or the folder.")
    columns: Text = Field(alias="schema", description="The columns with their types.")


class PostgresTableConfig(TableConfig):
    """A PostgreSQL table or view."""

    type: Literal["postgres"] = Field(description="The kind of table.")
    url: SecretStr = Field(description="The database, by reference: `${env:ORDERS_DB}`.")
    security: SecurityConfig | None = Field(default=None, description="As in a PostgreSQL sink.")
    table: Text = Field(description="The table with its schema.", examples=["public.customers"])


LookupConfig = Annotated[
    DeltaTableConfig | IcebergTableConfig | ParquetTableConfig | CsvTableConfig | JsonTableConfig | PostgresTableConfig,
    Field(discriminator="type"),
]
