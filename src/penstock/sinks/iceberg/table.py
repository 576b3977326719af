"""One Iceberg table and its catalog: looked at, made, changed, and its main branch moved, by compare-and-swap only.

The catalog is described once for both sides: pyiceberg on the driver, and Spark. Both use the same name for it, because
a catalog in a database keeps the name in its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from sqlalchemy import inspect

from penstock.config.fields import reveal
from penstock.config.sinks import IcebergCatalogConfig, PartitionText
from penstock.contracts import SqlEngine
from penstock.errors import MissingError
from penstock.model import MergeRules
from penstock.sinks.evolution import Fit
from penstock.sinks.iceberg.bounds import Bounds, conditions
from penstock.sinks.iceberg.partitions import spec_of
from penstock.sinks.iceberg.types import as_held, iceberg_type, to_iceberg
from penstock.sinks.spark_sql import merge_statement, quoted, staged_schema
from penstock.storage import Storage

Kind = Literal["sqlite", "rest", "sql", "hive"]

_CLIENT_TYPES = {"sqlite": "sql", "sql": "sql", "rest": "rest", "hive": "hive"}
_SPARK_TYPES = {"sqlite": "jdbc", "sql": "jdbc", "rest": "rest", "hive": "hive"}
_DRIVERS = {"postgresql": "postgresql+psycopg"}


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """A catalog and how to reach it. The address and the properties may hold secrets, so `repr` leaves them out.

    `sqlite` without an address is a file next to the tables; `sql` takes a database URL (`postgresql://...`).
    """

    kind: Kind = "sqlite"
    uri: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "penstock"

    def client_properties(self, warehouse: str) -> dict[str, str]:
        """What pyiceberg's `load_catalog` takes."""
        found = {"type": _CLIENT_TYPES[self.kind], "warehouse": self._warehouse(warehouse)}
        if found["type"] == "sql":
            # Reading must not create a catalog; a connection that the database has closed must be noticed.
            found |= {"init_catalog_tables": "false", "pool_pre_ping": "true"}
        if self.kind == "sqlite":
            found["uri"] = f"sqlite:///{self.file(warehouse)}"
        elif self.uri is not None:
            parts = urlsplit(self.uri)
            driver = _DRIVERS.get(parts.scheme, parts.scheme) if self.kind == "sql" else parts.scheme
            found["uri"] = urlunsplit(parts._replace(scheme=driver))
        return {**found, **self.properties}

    def spark_settings(self, warehouse: str) -> dict[str, str]:
        """The `spark.sql.catalog.*` settings, for a session that has not used this catalog name yet."""
        found = {
            "type": _SPARK_TYPES[self.kind],
            "warehouse": self._warehouse(warehouse),
            # Spark keeps tables it has seen for half a minute, and would not see what pyiceberg commits.
            "cache-enabled": "false",
        }
        if self.kind == "sqlite":
            found["uri"] = f"jdbc:sqlite:{self.file(warehouse)}"
        elif self.kind == "sql" and self.uri is not None:
            found |= _jdbc(self.uri)
        elif self.uri is not None:
            found["uri"] = self.uri
        prefix = f"spark.sql.catalog.{self.name}"
        settings = {f"{prefix}.{key}": value for key, value in {**found, **self.properties}.items()}
        return {prefix: "org.apache.iceberg.spark.SparkCatalog", **settings}

    def _warehouse(self, warehouse: str) -> str:
        return warehouse if self.kind == "rest" else warehouse_uri(warehouse)  # to a REST catalog it may be a name

    def file(self, warehouse: str) -> Path:
        """Where a SQLite catalog is."""
        if self.uri is not None:
            return Path(self.uri.removeprefix("sqlite:///")).absolute()
        root = local_path(warehouse)
        if root is None:
            raise MissingError(
                "SINK_CATALOG_UNSUPPORTED",
                "the embedded SQLite catalog needs a warehouse on a local disk",
                context={"warehouse": warehouse},
                hint="use another catalog, or set the uri of the SQLite file",
            )
        return root / "catalog.db"


def warehouse_uri(warehouse: str) -> str:
    """The warehouse for both sides: a URI where it is a local path, so that maintenance compares alike."""
    root = local_path(warehouse)
    return warehouse.rstrip("/") if root is None else f"file://{root}"


def local_path(warehouse: str) -> Path | None:
    """The warehouse as an absolute local path, or none where it is somewhere else."""
    parts = urlsplit(warehouse)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in warehouse else Path(warehouse).absolute()


def _jdbc(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    address = parts.netloc.rpartition("@")[2]
    found = {"uri": f"jdbc:{urlunsplit(parts._replace(scheme=scheme, netloc=address))}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    return found


def open_catalog(config: IcebergCatalogConfig, warehouse: str, storage: Storage) -> IcebergCatalog:
    """A catalog as a file names it, with the way in to the store that its warehouse is in."""
    uri = config.uri.get_secret_value() if config.uri is not None else None
    return IcebergCatalog(config.type, uri, {**storage.for_iceberg(warehouse), **reveal(config.properties)})


# A stream commits all day, and every commit rewrites the whole metadata.
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
_CATALOG_TABLE = "iceberg_tables"
FOREVER_MS = 2**63 - 1
RETAIN_TAG = "RETAIN 100000 DAYS"
"""The same for Spark, which does not take that many milliseconds in any of its units."""


class CatalogTable:
    """One table. Commits are made through pyiceberg, merges prepared by Spark on a branch included."""

    def __init__(self, catalog: IcebergCatalog, warehouse: str, identifier: tuple[str, ...]) -> None:
        self.catalog = catalog
        self.identifier = identifier
        self._warehouse = warehouse

    @property
    def spark_name(self) -> str:
        """The table in a statement of Spark SQL."""
        return quoted(self.catalog.name, *self.identifier)

    @property
    def spark_settings(self) -> dict[str, str]:
        """What a session of Spark needs to reach it."""
        return self.catalog.spark_settings(self._warehouse)

    @cached_property
    def _client(self) -> Catalog:
        return load_catalog(self.catalog.name, **self.catalog.client_properties(self._warehouse))

    @property
    def _is_made(self) -> bool:
        """Whether the catalog itself exists: opening a SQLite file or a database must not create it."""
        if self.catalog.kind == "sqlite" and not self.catalog.file(self._warehouse).exists():
            return False
        return not isinstance(self._client, SqlCatalog) or inspect(self._client.engine).has_table(_CATALOG_TABLE)

    def load(self) -> Table | None:
        """The table as it is now, or none. Loading it leaves no trace."""
        if not self._is_made:
            return None
        try:
            return self._client.load_table(self.identifier)
        except NoSuchTableError:
            return None

    def create(self, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> Table:
        """Make the namespace and the table."""
        if self.catalog.kind == "sqlite":
            self.catalog.file(self._warehouse).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self._client, SqlCatalog):
            self._client.create_tables()
        for depth in range(1, len(self.identifier)):
            if not self._client.namespace_exists(self.identifier[:depth]):
                self._make_namespace(self.identifier[:depth])
        columns = to_iceberg(schema)
        spec = spec_of(columns, partition_by)
        try:
            return self._client.create_table(self.identifier, columns, partition_spec=spec, properties=_NEW_TABLE)
        except TableAlreadyExistsError:
            return self._client.load_table(self.identifier)

    def change(self, table: Table, fit: Fit) -> Table:
        """Add columns and widen types, in one commit."""
        with table.update_schema() as update:
            for added in fit.added:
                update.add_column(added.path, iceberg_type(added.type))
            for widened in fit.widened:
                update.update_column(widened.path, iceberg_type(widened.type))
        return self._client.load_table(self.identifier)

    def append(
        self,
        base: Table,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        tag: str,
        removed: Sequence[DataFile] = (),
    ) -> None:
        """Add files and remove others, in one snapshot with a tag, if main and the columns are as in `base`."""
        metadata, current = base.metadata, base.current_snapshot()
        newest = metadata.model_copy(
            update={
                # pyiceberg retries a conflicting commit by itself, on a snapshot whose history was not read.
                "properties": {**metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"},
                # And it copies all of the metadata some 17 times: with 120 snapshots a commit took a second.
                "snapshots": [current] if current else [],
                "snapshot_log": [],
                "metadata_log": metadata.metadata_log[:2],  # the oldest, whose files a commit removes
                "refs": {name: ref for name, ref in metadata.refs.items() if name == MAIN_BRANCH},
            }
        )
        table = Table(base.name(), newest, base.metadata_location, base.io, base.catalog)
        transaction = table.transaction()
        update = transaction.update_snapshot(snapshot_properties=dict(summary))
        snapshot = update.overwrite() if removed else update.merge_append()
        for file in removed:
            snapshot.delete_data_file(file)
        for file in files:
            snapshot.append_data_file(file)
        snapshot.commit()
        transaction._stage(
            (_tag(tag, snapshot.snapshot_id),),
            (
                AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
                AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
            ),
        )
        transaction.commit_transaction()

    def merge_on_branch(
        self,
        engine: SqlEngine,
        branch: str,
        base: Table,
        files: Mapping[str, Mapping[str, Bounds]],
        columns: Sequence[str],
        rules: MergeRules,
        summary: Mapping[str, str],
    ) -> None:
        """Make a branch where `base` has main, and merge the rows of the files into it by Spark, in one snapshot.

        The files come with the bounds of what is in them, and the rows fill these `columns`.
        """
        current, settings, held = base.current_snapshot(), self.spark_settings, base.schema()
        version = f" AS OF VERSION {current.snapshot_id}" if current else ""
        engine.run(f"ALTER TABLE {self.spark_name} CREATE BRANCH {quoted(branch)}{version}", settings=settings)
        statement = merge_statement(
            f"{self.spark_name}.{quoted(f'branch_{branch}')}",
            columns,
            [field.name for field in held.fields],
            rules,
            conditions(list(files.values()), (*rules.keys, *rules.prune_by), "t"),
            positioned=True,
        )
        properties = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in summary.items()}
        relation = staged_schema(as_held(columns, held), positioned=True)
        engine.run(statement, files=list(files), schema=relation, settings={**settings, **properties})

    def publish(self, base: Table, branch: str, tag: str) -> None:
        """Move main to the head of a branch, in one commit with all the rest."""
        table = self._client.load_table(self.identifier)
        if branch not in table.metadata.refs:
            raise CommitFailedException(f"the branch {branch} is gone")
        head = table.metadata.refs[branch].snapshot_id
        current = base.current_snapshot()
        main = table.metadata.refs.get(MAIN_BRANCH)
        kept = main.model_dump(by_alias=True, exclude_none=True) if main else {}  # how long its snapshots are kept
        updates: tuple[TableUpdate, ...] = (
            _ref(MAIN_BRANCH, SnapshotRefType.BRANCH, head, kept),
            _tag(tag, head),
            _without(branch),
        )
        self._client.commit_table(
            table,
            (
                AssertTableUUID(uuid=base.metadata.table_uuid),
                _at(MAIN_BRANCH, current.snapshot_id if current else None),
                _at(branch, head),
            ),
            updates,
        )

    def drop(self, branches: Sequence[str]) -> None:
        """Remove branches."""
        if not branches:
            return
        table = self._client.load_table(self.identifier)
        left = [name for name in branches if name in table.metadata.refs]
        if left:
            self._client.commit_table(
                table,
                (AssertTableUUID(uuid=table.metadata.table_uuid),),
                tuple(_without(name) for name in left),
            )

    def _make_namespace(self, namespace: tuple[str, ...]) -> None:
        try:
            self._client.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return  # by another sink that starts at the same time


def _ref(
    name: str, kind: SnapshotRefType, snapshot_id: int, settings: Mapping[str, object] | None = None
) -> SetSnapshotRefUpdate:
    ref = {"ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    return SetSnapshotRefUpdate.model_validate({**(settings or {}), **ref})


def _tag(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """A tag that no expiry removes, also where the table says how long tags are kept."""
    return _ref(name, SnapshotRefType.TAG, snapshot_id, {"max-ref-age-ms": FOREVER_MS})


def _without(name: str) -> RemoveSnapshotRefUpdate:
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})


def _at(ref: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})
