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
            raise ValueError(f'"{text}" is neither a column nor a transform such as days(event_time)')
        return PartitionText(column)
    name, inside = call.group(1).lower(), [part.strip() for part in call.group(2).split(",")]
    if name in _TIMES:
        if len(inside) != 1 or not inside[0]:
            raise ValueError(f'"{text}": {name} takes one column, as in {name}(event_time)')
        return PartitionText(inside[0], _TIMES[name])
    if name in _SIZED:
        return _sized(text, name, inside)
    known = "years, months, days, hours, bucket, truncate"
    raise ValueError(f'"{text}": there is no transform "{name}"; there are {known}')


def _sized(text: str, name: str, inside: list[str]) -> PartitionText:
    if len(inside) != 2 or not inside[1]:
        raise ValueError(f'"{text}": {name} takes {_SIZED[name]} and a column, as in {name}(16, id)')
    if not re.fullmatch(r"[0-9]+", inside[0]) or not 0 < int(inside[0]) < 2**31:
        raise ValueError(f'"{text}": {_SIZED[name]} is a whole number above zero, not "{inside[0]}"')
    return PartitionText(inside[1], name, int(inside[0]))


_KEYS = "The columns that together identify a row."
_PARTITION_BY = "The columns to partition the files by."
_EVOLVE = (
    "When the rows' columns are not the table's: `fail`; `ignore` columns that it lacks; `add_columns` to it; or "
    "`widen`, which adds them and also lets a type grow where the table can."
)
_COORDINATES = "Keep the `_penstock` column (topic, partition, offset, timestamp) in the target."
_TARGET_FILE = "How large a data file may grow before the next one is begun, and how large compaction makes them."
_CLUSTER_BY = "Columns by which `penstock compact` orders the rows it rewrites (Z-order), so that readers skip files."
_TableMode = Literal["append", "merge"]
_MODE = "`append` adds the rows; `merge` updates the rows whose `keys` are there and inserts the others."
_Evolve = Literal["fail", "ignore", "add_columns", "widen"]
_RECORD = ("key", "value", "partition")
_FewNames = Annotated[tuple[Text, ...], Field(strict=False)]


class _Sink(Section):
    """What every sink has, and what the rest of the program needs to know of its kind."""

    located_by: ClassVar[str] = "table"
    """The setting that says where the rows go."""
    replaces: ClassVar[bool] = True
    """Whether a replay can replace rows in the same target."""

    name: Name = Field(
        description="The name of the sink, unique in the file. It is part of the commit's identity: do not change it "
        "later."
    )
    select: Names | None = Field(default=None, description="The columns that this sink gets. Left out, all of them.")
    where: Text | None = Field(
        default=None, description="A Spark SQL condition: the rows that this sink gets. Left out, all of them."
    )
    type: str = Field(description="The kind of sink.")

    @property
    def place(self) -> Any:
        """Where the rows go: a path, a table or a topic."""
        return getattr(self, self.located_by)

    def at(self, place: str) -> Self:
        """The same sink with another target, which is created if it does not exist."""
        made = {"create": True} if "create" in type(self).model_fields else {}
        return self.model_copy(update={self.located_by: place, **made})

    @property
    def folder(self) -> str | None:
        """Where its files are; none for a sink that has no files of its own."""
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
            written = scope.selected(self.select, "left out by this sink's select")
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
            message = "every column is in partition_by, and none is left for the files"
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
        description="A column, such as an event time: a row counts only where it is not less than in the row that is "
        "there, so that a late event does not undo a newer one. Deletes too: with it, "
        "tombstones, which have no columns, cannot delete.",
    )
    delete_when: Text | None = Field(
        default=None, description="A Spark SQL condition: such a row deletes the row of its key.", examples=["op = 'd'"]
    )
    insert_only: bool = Field(
        default=False, description="Only insert rows whose keys are not there; of several new ones the first counts."
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
                given.refuse((setting,), f"{verb} nothing with mode append", hint)
        elif mode in ("merge", "upsert"):
            if "keys" not in given:
                message = f"mode {mode} needs keys: without them no row can be found again"
                given.report("mode", message, "add keys: [...]", at_key=False)
            for other in ("when_newer", "delete_when") if given["insert_only"] is True else ():
                if other in given:
                    message = f"insert_only leaves the rows that are there alone, so {other} means nothing"
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
        description="Columns that never change for a key, such as the date an order was made on: the merge then "
        "reads the table only where they can match the batch. Keys prune by themselves.",
    )

    def check_columns(self, given: Given, scope: Scope, written: Scope) -> None:
        """The columns by which the table is laid out are there."""
        super().check_columns(given, scope, written)
        written.check_columns(self.cluster_by, given.at("cluster_by"))
        for index, name in enumerate(self.cluster_by):
            if name in (self.partition_by or ()):
                message = f'column "{name}" is in partition_by: its rows have files of their own already'
                given.report(("cluster_by", index), message, "remove it here", at_key=False)
        if self.merges:
            written.check_columns(self.prune_by, given.at("prune_by"))


class DeltaSinkConfig(FolderSinkConfig, MergingTableConfig):
    """A Delta table. Exactly once."""

    type: Literal["delta"] = Field(description="The kind of sink.")


def _refuse_hadoop(kind: Any) -> Any:
    if kind == "hadoop":
        raise wrong(
            "a Hadoop catalog is not supported any more",
            "register the table in a catalog of type sqlite, rest, sql or hive by its newest metadata file: the "
            "position of the pipeline is in it (docs/operations.md, section Tables)",
        )
    return kind


class IcebergCatalogConfig(Section):
    """Where an Iceberg catalog is."""

    type: Annotated[Literal["sqlite", "rest", "sql", "hive"], BeforeValidator(_refuse_hadoop)] = Field(
        default="sqlite", description="`sqlite` is a file in the warehouse; `rest`, `sql` and `hive` are at `uri`."
    )
    uri: SecretUrl | None = Field(
        default=None,
        description="The address of the catalog; one with a password comes by reference.",
        examples=["http://localhost:8181", "${env:CATALOG_DB}"],
    )
    properties: Settings = Field(
        default_factory=dict, description="Any other property of the catalog, as pyiceberg names it."
    )


def check_warehouse(warehouse: str, catalog: IcebergCatalogConfig, given: Given) -> None:
    """A catalog decides which of two commits counts. A file in an object store cannot."""
    if catalog.type == "sqlite" and catalog.uri is None and _in_object_store(warehouse):
        given.report(
            "warehouse",
            "a SQLite catalog has to be on a disk of this machine",
            "name a catalog that decides between writers: catalog: {type: rest, uri: ...} or {type: sql, uri: "
            "...}; for runs of one machine a file of it: catalog: {uri: sqlite:///path}",
            at_key=False,
        )


def _in_object_store(warehouse: str) -> bool:
    return is_uri(warehouse) and not warehouse.startswith("file://")


class IcebergSinkConfig(MergingTableConfig):
    """An Iceberg table. Exactly once."""

    type: Literal["iceberg"] = Field(description="The kind of sink.")
    table: Text = Field(description="The table, with its namespace.", examples=["shop.orders"])
    warehouse: Location = Field(description="The folder of the warehouse.")
    catalog: IcebergCatalogConfig = Field(
        default=IcebergCatalogConfig(), description="The catalog. Left out, a SQLite file in the warehouse."
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
        """The table has a namespace, and the catalog an address where it needs one."""
        check_warehouse(self.warehouse, self.catalog, given)
        if "." not in self.table.strip("."):
            message = f'table "{self.table}" has no namespace'
            given.report("table", message, f"write shop.{self.table}", at_key=False)
        kind, uri = self.catalog.type, self.catalog.uri
        if kind != "sqlite" and uri is None:
            given.report("catalog", f"a catalog of type {kind} needs its address", "add uri: ...")
        elif kind == "sqlite" and uri is not None and not _in_object_store(self.warehouse):
            message = f"a catalog of type {kind} is in the warehouse and has no address"
            given.report(("catalog", "uri"), message, "remove uri, or name the catalog's type")

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

    expr: Text = Field(description="A Spark SQL expression that gives the topic's name.")


class EncodeConfig(Section):
    """A record's value in the format of a registry's schema."""

    format: Literal["avro", "protobuf", "json"] = Field(description="The format.")
    registry: RegistryConfig = Field(description="The registry of the schema; a new one is registered there.")
    subject: Text | None = Field(
        default=None,
        description="The subject of the schema. Left out: the topic's name with `-value`, or `-key` for a key; needed "
        "where each row has its own topic.",
    )
    register_schema: bool = Field(
        default=True,
        alias="register",
        description="Register the schema if the registry does not know it. With `false` an unknown one is refused.",
    )
    schema_file: Location | None = Field(
        default=None, description="The schema to write by. Left out, it is made from the columns."
    )
    message: Text | None = Field(
        default=None, description="For Protobuf: the full name of the message. Left out, it is made from the names."
    )

    def check_values(self, given: Given) -> None:
        """The settings fit the format, and the schema file exists."""
        if self.message is not None and self.format != "protobuf":
            hint = "remove message, or write format: protobuf"
            given.report("message", f"message means nothing with format {self.format}", hint)
        if self.schema_file is not None and not FilePath(self.schema_file).is_file():
            hint = "the path is relative to the pipeline file"
            given.report("schema_file", "the schema file does not exist", hint, at_key=False)


class KeyEncodeConfig(EncodeConfig):
    """A record's key in the format of a registry's schema."""

    columns: Names = Field(description="The columns that make the key; a single one may be a plain value.")


_PRODUCER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "transactional.id": "it identifies the slot that writes",
    "enable.idempotence": "a transaction needs it on",
    "acks": "a transaction needs all",
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
        "for the row by a registry's schema. Left out, the row as JSON.",
    )
    headers: dict[str, Text] = Field(
        default_factory=dict, description="The record's headers: for each name a Spark SQL expression of text or bytes."
    )
    partition: Text | None = Field(
        default=None,
        description="The partition: a column or a Spark SQL expression. Left out, the client chooses by the key.",
    )
    partitions: Count | None = Field(
        default=None,
        description="How many partitions the topic has for which `partition` is made. Only needed when their number "
        "has changed, to say that the expression suits the new one.",
    )
    brokers: Brokers | None = Field(default=None, description="The cluster; left out, that of the source.")
    security: SecurityConfig | None = Field(
        default=None, description="As `source.security`; left out, that of the source where the cluster is the same."
    )
    options: Settings = Field(
        default_factory=dict, description="Any other setting of the producer, without the `kafka.` prefix."
    )
    guarantee: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="`exactly_once` writes in transactions; `at_least_once` without: a batch that is run again is sent "
        "again.",
    )
    slots: Count | None = Field(
        default=None,
        description="How many transactions write a batch side by side. Left out, one a core at the first run; it "
        "then stays.",
    )
    atomicity: Literal["slot", "batch"] = Field(
        default="slot",
        description="What appears at once: what one `slot` wrote, or the whole `batch`, which means one slot.",
    )
    transaction_timeout: Duration = Field(
        default=timedelta(minutes=1),
        description="How long a slot's write may take before the broker aborts it and the batch is tried again.",
    )
    create: bool = Field(default=False, description="Create a topic that is not there, with the brokers' defaults.")
    topics_allowed: Annotated[tuple[Annotated[Text, AfterValidator(check_pattern)], ...], Field(strict=False)] = Field(
        default=(),
        description="For `topic: {expr: ...}`: regular expressions, one of which must match a topic's whole name; the "
        "records of other topics go to quarantine. Left out, any topic but internal ones (`__...`, `penstock....`) and "
        "those that the pipeline reads or keeps its quarantine in, which no message may ever name.",
        examples=[["orders-.*"]],
    )
    max_topics: Count = Field(
        default=1_000,
        description="For `topic: {expr: ...}` with `create`: a topic is created only while fewer than this many are "
        "there that rows may name; records for further ones go to quarantine.",
    )
    coordinates: bool = Field(default=False, description="Put the `_penstock` coordinates into the JSON value.")

    @property
    def fixed_slots(self) -> int | None:
        """The number of slots that it asks for, if it does."""
        if self.guarantee == "at_least_once":
            return None
        return 1 if self.atomicity == "batch" else self.slots

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Settings of chosen topics and of transactions are given only where there are some."""
        super().check_keys(given)
        check_kafka_security(given)
        if not isinstance(given["topic"], dict):
            for key in ("topics_allowed", "max_topics"):
                given.refuse((key,), "means nothing where all rows go to one topic", f"remove {key}")
        if given["guarantee"] == "at_least_once":
            for key in ("slots", "atomicity", "transaction_timeout"):
                why = "means nothing with guarantee at_least_once, which writes without transactions"
                given.refuse((key,), why, f"remove {key}")

    def check_values(self, given: Given) -> None:
        """The producer's own settings, subjects and slots agree."""
        check_client_options(self.options, _PRODUCER, given)
        for part in ("key", "value"):
            encode = getattr(self, part)
            chosen = isinstance(self.topic, TopicExpression)
            if chosen and isinstance(encode, EncodeConfig) and encode.subject is None:
                message = "each row has its own topic, so the subject cannot be made from the topic's name"
                given.report(part, message, "add subject: ...")
        if self.guarantee == "exactly_once" and self.atomicity == "batch" and self.slots not in (None, 1):
            message = f"atomicity batch means one slot, and slots says {self.slots}"
            given.report("slots", message, "remove slots, or write atomicity: slot", at_key=False)

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
        description="The database; a URL with a password comes by reference: `${env:ORDERS_DB}`.",
        examples=["${env:ORDERS_DB}"],
    )
    security: SecurityConfig | None = Field(
        default=None,
        description="TLS with the database: `tls`, `ca_file`, `certificate_file`, `key_file`, `key_password`. Left "
        "out, as the url says.",
    )
    table: Text = Field(description="The table, with its schema.", examples=["public.orders"])
    mode: Literal["append", "upsert"] = Field(
        default="append", description="`append` inserts; `upsert` updates the rows whose `keys` are there."
    )
    create: bool = Field(default=False, description="Create the table if it is not there.")
    evolve: _Evolve = Field(default="fail", description=_EVOLVE)
    on_reject: Literal["fail", "quarantine"] = Field(
        default="fail",
        description="When the database refuses a row (a constraint, an overflow): `fail` stops the batch whole, "
        "`quarantine` writes the others.",
    )
    coordinates: bool = Field(default=False, description="Keep the `_penstock` coordinates in a jsonb column.")

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """The URL and the security do not repeat each other, and refused rows have somewhere to go."""
        super().check_keys(given)
        check_database_security(given)
        if given["on_reject"] == "quarantine" and not given.document.written("quarantine"):
            message = "refused rows go to the quarantine, and there is none"
            given.report("on_reject", message, "add quarantine: {table: ...}", at_key=False)


class ParquetSinkConfig(FolderSinkConfig):
    """Parquet files, a folder with a manifest for each batch. Exactly once for any reader that lists the folder."""

    replaces: ClassVar[bool] = False

    type: Literal["parquet"] = Field(description="The kind of sink.")
    path: Location = Field(description="The folder of the files.")


class JsonLinesSinkConfig(FolderSinkConfig):
    """Rows as JSON lines, a folder with a manifest for each batch. Exactly once for readers that list the folder."""

    replaces: ClassVar[bool] = False

    type: Literal["jsonl"] = Field(description="The kind of sink.")
    path: Location = Field(description="The folder of the files.")
    compression: Literal["none", "gzip"] = Field(default="none", description="How the files are compressed.")


SinkConfig = Annotated[
    DeltaSinkConfig
    | IcebergSinkConfig
    | KafkaSinkConfig
    | PostgresSinkConfig
    | ParquetSinkConfig
    | JsonLinesSinkConfig,
    Field(discriminator="type"),
]
