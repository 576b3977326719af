"""Where rows end."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from penstock.config.fields import Location, Name, Names, Section, Settings, Text
from penstock.config.source import Brokers, Topic

_NAME = "The name of the sink, unique in the file. It is part of the commit's identity: do not change it later."
_KEYS = "The columns that together identify a row."
_PARTITION_BY = "The columns to partition the files by."
_TableMode = Literal["append", "merge"]
_MODE = "`append` adds the rows; `merge` updates the rows whose `keys` are there and inserts the others."


class DeltaSinkConfig(Section):
    """A Delta table. Exactly once."""

    name: Name = Field(description=_NAME)
    type: Literal["delta"] = Field(description="The kind of sink.")
    path: Location = Field(description="The folder of the table.")
    mode: _TableMode = Field(default="append", description=_MODE)
    keys: Names | None = Field(default=None, description=f"{_KEYS} For `mode: merge`.")
    partition_by: Names | None = Field(default=None, description=_PARTITION_BY)
    evolve: Literal["fail", "add_columns"] = Field(
        default="fail", description="When rows have columns that the table lacks: `fail`, or `add_columns` to it."
    )
    coordinates: bool = Field(
        default=True, description="Keep the `_penstock` column (topic, partition, offset, timestamp) in the table."
    )


class IcebergSinkConfig(Section):
    """An Iceberg table. Exactly once."""

    name: Name = Field(description=_NAME)
    type: Literal["iceberg"] = Field(description="The kind of sink.")
    table: Text = Field(description="The table, with its namespace.", examples=["shop.orders"])
    warehouse: Location = Field(description="The folder of the warehouse.")
    mode: _TableMode = Field(default="append", description=_MODE)
    keys: Names | None = Field(default=None, description=f"{_KEYS} For `mode: merge`.")
    partition_by: Names | None = Field(default=None, description=_PARTITION_BY)
    evolve: Literal["fail", "add_columns"] = Field(
        default="fail", description="When rows have columns that the table lacks: `fail`, or `add_columns` to it."
    )
    coordinates: bool = Field(default=True, description="Keep the `_penstock` column in the table.")


class TopicExpression(Section):
    """A topic chosen for each row."""

    expr: Text = Field(description="A Spark SQL expression that gives the topic's name.")


class KafkaSinkConfig(Section):
    """A Kafka topic; the value is the row as JSON. Exactly once for readers of committed records."""

    name: Name = Field(description=_NAME)
    type: Literal["kafka"] = Field(description="The kind of sink.")
    topic: Topic | TopicExpression = Field(description="The topic, or `{expr: ...}` to choose one for each row.")
    key: Text | None = Field(default=None, description="The column that becomes the record's key.")
    brokers: Brokers | None = Field(default=None, description="The cluster; left out, that of the source.")
    options: Settings = Field(
        default_factory=dict, description="Any other setting of the producer, without the `kafka.` prefix."
    )


class PostgresSinkConfig(Section):
    """A PostgreSQL table. Exactly once."""

    name: Name = Field(description=_NAME)
    type: Literal["postgres"] = Field(description="The kind of sink.")
    url: SecretStr = Field(
        description="The database; what holds a password comes by reference: `${env:ORDERS_DB}`.",
        examples=["${env:ORDERS_DB}"],
    )
    table: Text = Field(description="The table, with its schema.", examples=["public.orders"])
    mode: Literal["append", "upsert"] = Field(
        default="append", description="`append` inserts; `upsert` updates the rows whose `keys` are there."
    )
    keys: Names | None = Field(default=None, description=f"{_KEYS} For `mode: upsert`.")
    create: bool = Field(default=False, description="Create the table if it is not there.")


class ParquetSinkConfig(Section):
    """Parquet files, with a manifest for each batch. Exactly once for readers of the manifests."""

    name: Name = Field(description=_NAME)
    type: Literal["parquet"] = Field(description="The kind of sink.")
    path: Location = Field(description="The folder of the files.")
    partition_by: Names | None = Field(default=None, description=_PARTITION_BY)
    coordinates: bool = Field(default=True, description="Keep the `_penstock` column in the files.")


SinkConfig = Annotated[
    DeltaSinkConfig | IcebergSinkConfig | KafkaSinkConfig | PostgresSinkConfig | ParquetSinkConfig,
    Field(discriminator="type"),
]
