"""Tables that rows are joined with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.config.connections import SecurityConfig, check_database_security
from penstock.config.ddl import ColumnsError, read_columns
from penstock.config.fields import Duration, Location, SecretUrl, Section, Size, Text
from penstock.config.sinks import IcebergCatalogConfig, check_warehouse
from penstock.config.yaml_source import Given


class TableConfig(Section):
    """What every table has."""

    refresh: Literal["on_change"] | Duration = Field(
        default="on_change",
        description="When the table is reloaded: `on_change`, detected at the next batch, or after a duration.",
    )
    memory: Size = Field(
        default=256 * 1024**2,
        description="The maximum memory of the table in a task. Larger tables are joined by Spark.",
    )


class DeltaTableConfig(TableConfig):
    """A Delta table."""

    type: Literal["delta"] = Field(description="The kind of table.")
    path: Location = Field(description="The folder of the table.")


class IcebergTableConfig(TableConfig):
    """An Iceberg table."""

    type: Literal["iceberg"] = Field(description="The kind of table.")
    table: Text = Field(description="The table name with its namespace.", examples=["shop.customers"])
    warehouse: Location = Field(description="The folder of the warehouse.")
    catalog: IcebergCatalogConfig = Field(default=IcebergCatalogConfig(), description="As in an Iceberg sink.")

    def check_values(self, given: Given) -> None:
        """Check that the location of the catalog is supported."""
        check_warehouse(self.warehouse, self.catalog, given)


class ParquetTableConfig(TableConfig):
    """A Parquet file, or a folder of them."""

    type: Literal["parquet"] = Field(description="The kind of table.")
    path: Location = Field(description="The file or the folder.")


class TextTableConfig(TableConfig):
    """Files of text, whose columns the pipeline file gives."""

    path: Location = Field(description="The file or the folder.")
    columns: Text = Field(
        alias="schema", description="The columns with their types.", examples=["id BIGINT, name STRING"]
    )

    def check_values(self, given: Given) -> None:
        """The columns can be read."""
        try:
            read_columns(self.columns)
        except ColumnsError as error:
            given.document.report_error(given.at("schema"), error)


class CsvTableConfig(TextTableConfig):
    """A CSV file with a line of names, or a folder of them."""

    type: Literal["csv"] = Field(description="The kind of table.")


class JsonTableConfig(TextTableConfig):
    """A file of JSON objects, one a line, or a folder of them."""

    type: Literal["json"] = Field(description="The kind of table.")


class PostgresTableConfig(TableConfig):
    """A PostgreSQL table or view."""

    type: Literal["postgres"] = Field(description="The kind of table.")
    url: SecretUrl = Field(description="The database URL, by reference: `${env:ORDERS_DB}`.")
    security: SecurityConfig | None = Field(default=None, description="As in a PostgreSQL sink.")
    table: Text = Field(description="The table name with its schema.", examples=["public.customers"])

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """The URL and the security do not repeat each other."""
        check_database_security(given)


LookupConfig = Annotated[
    DeltaTableConfig | IcebergTableConfig | ParquetTableConfig | CsvTableConfig | JsonTableConfig | PostgresTableConfig,
    Field(discriminator="type"),
]
