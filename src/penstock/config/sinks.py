"""Where rows end: the sinks, each with what has to hold of its settings and columns; and `partition_by` of an Iceberg
table as people write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.config.connections import (
    RegistryConfig,
    SecurityConfig,
    check_client_options,
    check_database_security,
    check_kafka_security,
)
from penstock.config.fields import (
    Count,
    Duration,
    Location,
    Name,
    Names,
    SecretUrl,
    Section,
    Settings,
    Size,
    Text,
    is_uri,
    wrong,
)
from penstock.config.scope import Scope
from penstock.config.source import Brokers, Topic, check_pattern
from penstock.config.yaml_source import Given

_CALL = re.compile(r"^\s*(\w+)\s*\((.*)\)\s*$", re.DOTALL)
_TIMES = {name: name.removesuffix("s") for name in ("years", "months", "days", "hours", "year", "month", "day", "hour")}
_SIZED = {"bucket": "the number of buckets", "truncate": "the width"}


@dataclass(frozen=True, slots=True)
class PartitionText:
    """One entry: the column, and what is done to its value (`identity`, `day`, `bucket`, ...)."""

    column: str
    transform: str = "identity"
    size: int | None = None
    """The number of buckets, or the width of a truncation."""

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        if self.size is None:
            return f"{self.transform}s({self.column})"
        return f"{self.transform}({self.size}, {self.column})"


def parse_partition(text: str) -> PartitionText:
    """Parse one entry. Raises `ValueError` with what is wrong and what would be right."""
    call = _CALL.match(text)
    if call is None:
        column = text.strip()
        if not column or "(" in column or ")" in column:
            raise ValueError(f'"{text}" is not a column or a transform such as days(event_time)')
        return PartitionText(column)
    name, inside = call.group(1).lower(), [part.strip() for part in call.group(2).split(",")]
    if name in _TIMES:
        if len(inside) != 1 or not inside[0]:
            raise ValueError(f'"{text}": {name} takes one column, as in {name}(event_time)')
        return PartitionText(inside[0], _TIMES[name])
    if name in _SIZED:
        return _sized(text, name, inside)
    known = "years, months, days, hours, bucket, truncate"
    raise ValueError(f'"{text}": unknown transform "{name}"; known: {known}')


def _sized(text: str, name: str, inside: list[str]) -> PartitionText:
    if len(inside) != 2 or not inside[1]:
        raise ValueError(f'"{text}": {name} takes {_SIZED[name]} and a column, as in {name}(16, id)')
    if not re.fullmatch(r"[0-9]+", inside[0]) or not 0 < int(inside[0]) < 2**31:
        raise ValueError(f'"{text}": {_SIZED[name]} is a whole number above zero, not "{inside[0]}"')
    return PartitionText(inside[1], name, int(inside[0]))


_KEYS = "The columns that identify a row."
_PARTITION_BY = "The partition columns."
_EVOLVE = (
    "If the columns of the rows differ from the table: `fail`; `ignore` columns that the table lacks; "
    "`add_columns` to the table; or `widen`, which also widens types where the table supports it."
)
_COORDINATES = "Keep the `_penstock` column (topic, partition, offset, timestamp) in the target."
_TARGET_FILE = "The target size of data files, for writing and for compaction."
_CLUSTER_BY = "Columns by which `penstock compact` orders rows (Z-order), so that readers can skip files."
_TableMode = Literal["append", "merge"]
_MODE = "`append` adds the rows; `merge` updates rows with existing `keys` and inserts the others."
_Evolve = Literal["fail", "ignore", "add_columns", "widen"]
_RECORD = ("key", "value", "partition")
_FewNames = Annotated[tuple[Text, ...], Field(strict=False)]


class _Sink(Section):
    """What every sink has, and what the rest of the program needs to know of its kind."""

    located_by: ClassVar[str] = "table"
    """The setting that names the target."""
    replaces: ClassVar[bool] = True
    """Whether a replay can replace rows in the same target."""

    name: Name = Field(
        description="The name of the sink, unique in the file. It is part of the commit's identity: do not change it "
        "later."
    )
    select: Names | None = Field(default=None, description="The columns that this sink gets. Defaults to all.")
    where: Text | None = Field(
        default=None, description="A Spark SQL condition that selects the rows of this sink. Defaults to all."
    )
    type: str = Field(description="The kind of sink.")

    @property
    def place(self) -> Any:
        """The target: a path, a table or a topic."""
        return getattr(self, self.located_by)

    def at(self, place: str) -> Self:
        """The same sink with another target, which is created if it does not exist."""
        made = {"create": True} if "create" in type(self).model_fields else {}
        return self.model_copy(update={self.located_by: place, **made})

    @property
    def folder(self) -> str | None:
        """The location of its files; None for a sink without files."""
        return None

    @property
    def merges(self) -> bool:
        """Whether it finds rows again by their keys."""
        return getattr(self, "mode", None) in ("merge", "upsert")

    def check(self, given: Given, scope: Scope) -> None:
        """Report what is wrong between the sink and the columns that reach it."""
        if self.where is not None:
            scope.check_expression(self.where, given.at("where"))
        written = scope
        if self.select is not None:
            scope.check_columns(self.select, given.at("select"))
            written = scope.selected(self.select, "not in this sink's select")
        self.check_columns(given, scope, written)

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """Report settings that do not fit the columns: those that reach the sink, and those of them it writes."""


class FolderSinkConfig(_Sink):
    """A sink whose target is a folder: a commit is a rename or a conditional write in it."""

    located_by: ClassVar[str] = "path"

    path: Location = Field(description="The folder of the table.")
    partition_by: Names | None = Field(default=None, description=_PARTITION_BY)
    coordinates: bool = Field(default=True, description=_COORDINATES)

    @property
    def folder(self) -> str:
        """Where its files are."""
        return self.path

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The partition columns can name folders, and do not take all columns."""
        super().check_columns(given, scope, written)
        columns = self.partition_by or ()
        written.check_columns(columns, given.at("partition_by"))
        if written.types is None:
            return
        if columns and set(written.names()) <= set(columns):
            message = "every column is in partition_by, so no column is left for the files"
            context = [f"columns: {', '.join(written.names())}"]
            given.report("partition_by", message, context=context, at_key=False)
        for index, name in enumerate(columns):
            kind = written.types.get(name)
            if kind is not None and (kind.nested or kind.name == "BINARY"):
                message = f'column "{name}" is {kind}, which cannot name a folder'
                given.report(("partition_by", index), message, at_key=False)


class MergingConfig(_Sink):
    """A sink that can merge: how rows meet the rows that are there."""

    keys: Names | None = Field(default=None, description=f"{_KEYS} For `mode: merge` and `mode: upsert`.")
    when_newer: Text | None = Field(
        default=None,
        description="A column, such as an event time: a row is applied only if its value is not less than in the "
        "existing row, so that a late event does not overwrite a newer one. Also "
        "applies to deletes: tombstones, which have no columns, cannot delete then.",
    )
    delete_when: Text | None = Field(
        default=None,
        description="A Spark SQL condition: rows for which it is true delete the row of their key.",
        examples=["op = 'd'"],
    )
    insert_only: bool = Field(
        default=False, description="Only insert rows whose keys do not exist; of several new ones, the first wins."
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """A merge has keys, and what it has is not given without one."""
        super().check_keys(given)
        mode = given["mode"]
        if mode in (None, "append"):
            for setting in ("keys", "when_newer", "delete_when", "insert_only", "prune_by"):
                verb = "mean" if setting == "keys" else "means"
                dedupe = "; to drop duplicates within a batch: - dedupe" if setting == "keys" else ""
                hint = f"remove {setting}, or change the mode{dedupe}"
                given.refuse((setting,), f"{verb} no effect with mode append", hint)
        elif mode in ("merge", "upsert"):
            if "keys" not in given:
                message = f"mode {mode} needs keys to match rows"
                given.report("mode", message, "add keys: [...]", at_key=False)
            for other in ("when_newer", "delete_when") if given["insert_only"] is True else ():
                if other in given:
                    message = f"insert_only never changes existing rows, so {other} has no effect"
                    given.report(other, message, f"remove insert_only or {other}")

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The columns that decide about a merge are there."""
        super().check_columns(given, scope, written)
        written.check_columns(self.keys or (), given.at("keys"))
        if self.merges and self.when_newer is not None:
            written.has(given.at("when_newer"), self.when_newer)
        if self.merges and self.delete_when is not None:
            scope.check_expression(self.delete_when, given.at("delete_when"))


class MergingTableConfig(MergingConfig):
    """A table of files."""

    partition_by: Names | None = Field(default=None, description=_PARTITION_BY)
    mode: _TableMode = Field(default="append", description=_MODE)
    evolve: _Evolve = Field(default="fail", description=_EVOLVE)
    coordinates: bool = Field(default=True, description=_COORDINATES)
    target_file_bytes: Size = Field(default=128 << 20, description=_TARGET_FILE)
    cluster_by: _FewNames = Field(default=(), description=_CLUSTER_BY)
    prune_by: _FewNames = Field(
        default=(),
        description="Columns that never change for a key, such as the order date: the merge then reads only the "
        "parts of the table that can match the batch. Keys prune by themselves.",
    )

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The columns by which the table is laid out are there."""
        super().check_columns(given, scope, written)
        written.check_columns(self.cluster_by, given.at("cluster_by"))
        for index, name in enumerate(self.cluster_by):
            if name in (self.partition_by or ()):
                message = f'column "{name}" is in partition_by, so its values already have separate files'
                given.report(("cluster_by", index), message, "remove it here", at_key=False)
        if self.merges:
            written.check_columns(self.prune_by, given.at("prune_by"))


class DeltaSinkConfig(FolderSinkConfig, MergingTableConfig):
    """A Delta table. Exactly once."""

    type: Literal["delta"] = Field(description="The kind of sink.")


def _refuse_hadoop(kind: Any) -> Any:
    if kind == "hadoop":
        raise wrong(
            "Hadoop catalogs are no longer supported",
            "register the newest metadata file of the table, which contains the position of the pipeline, in a "
            "catalog of type sqlite, rest, sql or hive (docs/operations.md, section Tables)",
        )
    return kind


class IcebergCatalogConfig(Section):
    """Where an Iceberg catalog is."""

    type: Annotated[Literal["sqlite", "rest", "sql", "hive"], BeforeValidator(_refuse_hadoop)] = Field(
        default="sqlite", description="`sqlite` is a file in the warehouse; `rest`, `sql` and `hive` are at `uri`."
    )
    uri: SecretUrl | None = Field(
        default=None,
        description="The URL of the catalog; use a reference if it contains a password.",
        examples=["http://localhost:8181", "${env:CATALOG_DB}"],
    )
    properties: Settings = Field(
        default_factory=dict, description="Any other catalog property, under its pyiceberg name."
    )


def check_warehouse(warehouse: str, catalog: IcebergCatalogConfig, given: Given) -> None:
    """A catalog decides which of two commits counts. A file in an object store cannot."""
    if catalog.type == "sqlite" and catalog.uri is None and _in_object_store(warehouse):
        given.report(
            "warehouse",
            "a SQLite catalog must be on a local disk",
            "use a catalog that supports concurrent writers: catalog: {type: rest, uri: ...} or {type: sql, "
            "uri: ...}; for runs on one machine, a local file: catalog: {uri: sqlite:///path}",
            at_key=False,
        )


def _in_object_store(warehouse: str) -> bool:
    return is_uri(warehouse) and not warehouse.startswith("file://")


class IcebergSinkConfig(MergingTableConfig):
    """An Iceberg table. Exactly once."""

    type: Literal["iceberg"] = Field(description="The kind of sink.")
    table: Text = Field(description="The table name with its namespace.", examples=["shop.orders"])
    warehouse: Location = Field(description="The folder of the warehouse.")
    catalog: IcebergCatalogConfig = Field(
        default=IcebergCatalogConfig(), description="The catalog. Defaults to a SQLite file in the warehouse."
    )
    partition_by: Names | None = Field(
        default=None,
        description="Columns or their transforms: `days(event_time)`, `bucket(16, id)`, also `years`, `months`, "
        "`hours` and `truncate`.",
    )

    @property
    def folder(self) -> str:
        """Where its files are, as a catalog lays them out."""
        return f"{self.warehouse.rstrip('/')}/{self.table.replace('.', '/')}"

    def check_values(self, given: Given) -> None:
        """Check that the table has a namespace, and the catalog a URI if it needs one."""
        check_warehouse(self.warehouse, self.catalog, given)
        if "." not in self.table.strip("."):
            message = f'table "{self.table}" has no namespace'
            given.report("table", message, f"write shop.{self.table}", at_key=False)
        kind, uri = self.catalog.type, self.catalog.uri
        if kind != "sqlite" and uri is None:
            given.report("catalog", f"a catalog of type {kind} needs a uri", "add uri: ...")
        elif kind == "sqlite" and uri is not None and not _in_object_store(self.warehouse):
            message = f"a catalog of type {kind} is in the warehouse and has no uri"
            given.report(("catalog", "uri"), message, "remove uri, or set the catalog's type")

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The partitions can be read, and their columns are there."""
        super().check_columns(given, scope, written)
        for index, text in enumerate(self.partition_by or ()):
            try:
                column = parse_partition(text).column
            except ValueError as error:
                given.report(("partition_by", index), str(error), at_key=False)
            else:
                written.has(given.at("partition_by", index), column)


class TopicExpression(Section):
    """A topic chosen for each row."""

    expr: Text = Field(description="A Spark SQL expression for the topic name.")


class EncodeConfig(Section):
    """A record's value in the format of a registry's schema."""

    format: Literal["avro", "protobuf", "json"] = Field(description="The format.")
    registry: RegistryConfig = Field(description="The schema registry; new schemas are registered there.")
    subject: Text | None = Field(
        default=None,
        description="The subject of the schema. Defaults to the topic name with `-value`, or `-key` for a key; "
        "required if each row has its own topic.",
    )
    register_schema: bool = Field(
        default=True,
        alias="register",
        description="Register the schema if it is unknown. `false` refuses unknown schemas.",
    )
    schema_file: Location | None = Field(
        default=None, description="The schema to write with. Defaults to one derived from the columns."
    )
    message: Text | None = Field(
        default=None, description="For Protobuf: the full name of the message. Derived if omitted."
    )

    def check_values(self, given: Given) -> None:
        """The settings fit the format, and the schema file exists."""
        if self.message is not None and self.format != "protobuf":
            hint = "remove message, or write format: protobuf"
            given.report("message", f"message has no effect with format {self.format}", hint)
        if self.schema_file is not None and not FilePath(self.schema_file).is_file():
            hint = "the path is relative to the pipeline file"
            given.report("schema_file", "the schema file does not exist", hint, at_key=False)


class KeyEncodeConfig(EncodeConfig):
    """A record's key in the format of a registry's schema."""

    columns: Names = Field(description="The columns of the key; a single column may be a plain value.")


_PRODUCER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "transactional.id": "it identifies the writing slot",
    "enable.idempotence": "transactions require it",
    "acks": "transactions require all",
    "key.serializer": "the value is the row as JSON",
    "value.serializer": "the value is the row as JSON",
}
"""Settings of the producer that Penstock sets itself, and why."""


class KafkaSinkConfig(_Sink):
    """A Kafka topic; the value is the row as JSON. Exactly once for readers of committed records."""

    located_by: ClassVar[str] = "topic"
    replaces: ClassVar[bool] = False

    type: Literal["kafka"] = Field(description="The kind of sink.")
    topic: Topic | TopicExpression = Field(description="The topic, or `{expr: ...}` to choose one for each row.")
    key: Text | KeyEncodeConfig | None = Field(
        default=None,
        description="The record's key: a column, or a Spark SQL expression of text or bytes; or `{format: ..., "
        "registry: ..., columns: [...]}`.",
    )
    value: Text | EncodeConfig | None = Field(
        default=None,
        description="The value: a column or a Spark SQL expression of text or bytes; or `{format: ..., registry: ...}` "
        "to encode the row with a registry schema. Defaults to the row as JSON.",
    )
    headers: dict[str, Text] = Field(
        default_factory=dict, description="The record's headers: a Spark SQL expression of text or bytes for each name."
    )
    partition: Text | None = Field(
        default=None,
        description="The partition: a column or a Spark SQL expression. Defaults to the client's partitioner, by key.",
    )
    partitions: Count | None = Field(
        default=None,
        description="The number of partitions that `partition` is written for. Only needed after the number has "
        "changed, to confirm that the expression fits the new one.",
    )
    brokers: Brokers | None = Field(default=None, description="The cluster; defaults to that of the source.")
    security: SecurityConfig | None = Field(
        default=None, description="As `source.security`; defaults to that of the source if the cluster is the same."
    )
    options: Settings = Field(
        default_factory=dict, description="Any other setting of the producer, without the `kafka.` prefix."
    )
    guarantee: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="`exactly_once` writes in transactions; `at_least_once` does not: a retried batch is sent again.",
    )
    slots: Count | None = Field(
        default=None,
        description="How many transactions write a batch in parallel. Defaults to one per core at the first run, "
        "and stays fixed.",
    )
    atomicity: Literal["slot", "batch"] = Field(
        default="slot",
        description="What becomes visible atomically: the records of one `slot`, or the whole `batch`, which "
        "implies one slot.",
    )
    transaction_timeout: Duration = Field(
        default=timedelta(minutes=1),
        description="How long the transaction of a slot may take before the broker aborts it and the batch is retried.",
    )
    create: bool = Field(default=False, description="Create missing topics, with the brokers' defaults.")
    topics_allowed: Annotated[tuple[Annotated[Text, AfterValidator(check_pattern)], ...], Field(strict=False)] = Field(
        default=(),
        description="For `topic: {expr: ...}`: regular expressions, one of which must match the whole topic name; "
        "records for other topics go to quarantine. Defaults to any topic except internal ones (`__...`, "
        "`penstock....`) and the source and quarantine topics of the pipeline, which are never allowed.",
        examples=[["orders-.*"]],
    )
    max_topics: Count = Field(
        default=1_000,
        description="For `topic: {expr: ...}` with `create`: a topic is created only while fewer than this many "
        "allowed topics exist; records for further ones go to quarantine.",
    )
    coordinates: bool = Field(default=False, description="Include the `_penstock` coordinates in the JSON value.")

    @property
    def fixed_slots(self) -> int | None:
        """The requested number of slots, if set."""
        if self.guarantee == "at_least_once":
            return None
        return 1 if self.atomicity == "batch" else self.slots

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Check that settings for per-row topics and for transactions are only used with these."""
        super().check_keys(given)
        check_kafka_security(given)
        if not isinstance(given["topic"], dict):
            for key in ("topics_allowed", "max_topics"):
                given.refuse((key,), "has no effect if all rows go to one topic", f"remove {key}")
        if given["guarantee"] == "at_least_once":
            for key in ("slots", "atomicity", "transaction_timeout"):
                why = "has no effect with guarantee at_least_once, which writes without transactions"
                given.refuse((key,), why, f"remove {key}")

    def check_values(self, given: Given) -> None:
        """The producer's own settings, subjects and slots agree."""
        check_client_options(self.options, _PRODUCER, given)
        for part in ("key", "value"):
            encode = getattr(self, part)
            chosen = isinstance(self.topic, TopicExpression)
            if chosen and isinstance(encode, EncodeConfig) and encode.subject is None:
                message = "each row has its own topic, so the subject cannot be derived from the topic name"
                given.report(part, message, "add subject: ...")
        if self.guarantee == "exactly_once" and self.atomicity == "batch" and self.slots not in (None, 1):
            message = f"atomicity batch implies one slot, but slots is {self.slots}"
            given.report("slots", message, "remove slots, or set atomicity: slot", at_key=False)

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The expressions are over the columns that reach the sink."""
        super().check_columns(given, scope, written)
        expressions: dict[tuple[str, ...], object] = {(part,): getattr(self, part) for part in _RECORD}
        expressions |= {("headers", name): text for name, text in self.headers.items()}
        if isinstance(self.topic, TopicExpression):
            expressions["topic", "expr"] = self.topic.expr
        for path, text in expressions.items():
            if isinstance(text, str):
                scope.check_expression(text, given.at(*path))
        if isinstance(self.key, KeyEncodeConfig):
            scope.check_columns(self.key.columns, given.at("key", "columns"))


class PostgresSinkConfig(MergingConfig):
    """A PostgreSQL table. Exactly once."""

    type: Literal["postgres"] = Field(description="The kind of sink.")
    url: SecretUrl = Field(
        description="The database URL; use a reference if it contains a password: `${env:ORDERS_DB}`.",
        examples=["${env:ORDERS_DB}"],
    )
    security: SecurityConfig | None = Field(
        default=None,
        description="TLS for the database: `tls`, `ca_file`, `certificate_file`, `key_file`, `key_password`. "
        "Defaults to the settings in the url.",
    )
    table: Text = Field(description="The table name with its schema.", examples=["public.orders"])
    mode: Literal["append", "upsert"] = Field(
        default="append", description="`append` inserts; `upsert` updates rows with existing `keys`."
    )
    create: bool = Field(default=False, description="Create the table if it does not exist.")
    evolve: _Evolve = Field(default="fail", description=_EVOLVE)
    on_reject: Literal["fail", "quarantine"] = Field(
        default="fail",
        description="If the database refuses a row (a constraint, an overflow): `fail` stops the whole batch, "
        "`quarantine` writes the other rows.",
    )
    coordinates: bool = Field(default=False, description="Keep the `_penstock` coordinates in a jsonb column.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """The URL and the security do not repeat each other, and refused rows have somewhere to go."""
        super().check_keys(given)
        check_database_security(given)
        if given["on_reject"] == "quarantine" and not given.document.written("quarantine"):
            message = "refused rows go to the quarantine, but the pipeline has none"
            given.report("on_reject", message, "add quarantine: {table: ...}", at_key=False)


class ParquetSinkConfig(FolderSinkConfig):
    """Parquet files, a folder with a manifest for each batch. Exactly once for any reader that lists the folder."""

    replaces: ClassVar[bool] = False

    type: Literal["parquet"] = Field(description="The kind of sink.")
    path: Location = Field(description="The target folder.")


class JsonLinesSinkConfig(FolderSinkConfig):
    """Rows as JSON lines, a folder with a manifest for each batch. Exactly once for readers that list the folder."""

    replaces: ClassVar[bool] = False

    type: Literal["jsonl"] = Field(description="The kind of sink.")
    path: Location = Field(description="The target folder.")
    compression: Literal["none", "gzip"] = Field(default="none", description="The compression of the files.")


SinkConfig = Annotated[
    DeltaSinkConfig
    | IcebergSinkConfig
    | KafkaSinkConfig
    | PostgresSinkConfig
    | ParquetSinkConfig
    | JsonLinesSinkConfig,
    Field(discriminator="type"),
]
