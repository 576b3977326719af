"""One table behind its catalog: looked at, made, widened, and its main branch moved, by compare-and-swap only.

`CatalogTable` does it through pyiceberg. `HadoopTable` has no such client: it is looked at through the newest of its
metadata files, without a JVM, and changed through Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

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
from pyiceberg.table import StaticTable, Table, TableProperties
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

from penstock.config.sinks import PartitionText
from penstock.contracts import SqlEngine
from penstock.sinks.evolution import Fit
from penstock.sinks.iceberg.catalog import IcebergCatalog, warehouse_uri
from penstock.sinks.iceberg.partitions import spec_of
from penstock.sinks.iceberg.types import iceberg_type, literal, quoted, spark_type, to_iceberg
from penstock.storage import Storage

# A stream commits all day, and every commit writes the whole metadata anew.
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
_CATALOG_TABLE = "iceberg_tables"
FOREVER_MS = 2**63 - 1
RETAIN_TAG = "RETAIN 100000 DAYS"
"""The same for Spark, which does not take that many milliseconds in any of its units."""


class TableSide(Protocol):
    """What the sink asks of a table, whatever its catalog."""

    def look(self) -> Table | None:
        """The table as it is now, or none."""
        ...

    def create(self, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> Table:
        """Make the table, unless someone else just did."""
        ...

    def change(self, table: Table, fit: Fit) -> Table:
        """Give the table the columns that it lacks and the types that it needs, inside structs too."""
        ...

    def publish(self, seen: Table, branch: str, tag: str) -> None:
        """Move main to the head of a branch, if main is still where `seen` has it; tag it, drop the branch."""
        ...

    def drop(self, branches: Sequence[str]) -> None:
        """Remove branches."""
        ...


class CatalogTable:
    """A table in a catalog that pyiceberg speaks to."""

    def __init__(self, catalog: IcebergCatalog, warehouse: str, identifier: tuple[str, ...]) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._identifier = identifier

    @cached_property
    def _client(self) -> Catalog:
        return load_catalog(self._catalog.name, **self._catalog.client_properties(self._warehouse))

    @property
    def _is_made(self) -> bool:
        """Whether the catalog itself is there: opening a SQLite file or a database must not make it."""
        if self._catalog.kind == "sqlite" and not self._catalog.file(self._warehouse).exists():
            return False
        return not isinstance(self._client, SqlCatalog) or inspect(self._client.engine).has_table(_CATALOG_TABLE)

    def look(self) -> Table | None:
        """The table as it is now, or none. Looking leaves no trace."""
        if not self._is_made:
            return None
        try:
            return self._client.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def create(self, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> Table:
        """Make the namespace and the table."""
        if self._catalog.kind == "sqlite":
            self._catalog.file(self._warehouse).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self._client, SqlCatalog):
            self._client.create_tables()
        for depth in range(1, len(self._identifier)):
            if not self._client.namespace_exists(self._identifier[:depth]):
                self._make_namespace(self._identifier[:depth])
        columns = to_iceberg(schema)
        spec = spec_of(columns, partition_by)
        try:
            return self._client.create_table(self._identifier, columns, partition_spec=spec, properties=_NEW_TABLE)
        except TableAlreadyExistsError:
            return self._client.load_table(self._identifier)

    def change(self, table: Table, fit: Fit) -> Table:
        """Give the table what it lacks, in one commit."""
        with table.update_schema() as update:
            for added in fit.added:
                update.add_column(added.path, iceberg_type(added.type))
            for widened in fit.widened:
                update.update_column(widened.path, iceberg_type(widened.type))
        return self._client.load_table(self._identifier)

    def append(
        self,
        seen: Table,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        tag: str,
        removed: Sequence[DataFile] = (),
    ) -> None:
        """Add files and take others out, in one snapshot with a tag, if main and the columns are as `seen` has them."""
        metadata, current = seen.metadata, seen.current_snapshot()
        base = metadata.model_copy(
            update={
                # pyiceberg tries a conflicting commit again by itself, on a snapshot that nobody looked through.
                "properties": {**metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"},
                # And it copies all of the metadata some 17 times: with 120 snapshots a commit took a second.
                "snapshots": [current] if current else [],
                "snapshot_log": [],
                "metadata_log": metadata.metadata_log[:2],  # the oldest, whose files a commit removes
                "refs": {name: ref for name, ref in metadata.refs.items() if name == MAIN_BRANCH},
            }
        )
        table = Table(seen.name(), base, seen.metadata_location, seen.io, seen.catalog)
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

    def publish(self, seen: Table, branch: str, tag: str) -> None:
        """Move main to the head of a branch, in one commit with all the rest."""
        table = self._client.load_table(self._identifier)
        if branch not in table.metadata.refs:
            raise CommitFailedException(f"the branch {branch} is gone")
        head = table.metadata.refs[branch].snapshot_id
        current = seen.current_snapshot()
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
                AssertTableUUID(uuid=seen.metadata.table_uuid),
                _at(MAIN_BRANCH, current.snapshot_id if current else None),
                _at(branch, head),
            ),
            updates,
        )

    def drop(self, branches: Sequence[str]) -> None:
        """Remove branches."""
        if not branches:
            return
        table = self._client.load_table(self._identifier)
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


class HadoopTable:
    """A table in a Hadoop catalog: a folder whose newest metadata file is the table."""

    def __init__(
        self,
        catalog: IcebergCatalog,
        warehouse: str,
        identifier: tuple[str, ...],
        engine: Callable[[], SqlEngine],
        storage: Storage = Storage(),
    ) -> None:
        self._storage = storage
        self._settings = catalog.spark_settings(warehouse)
        self._properties = dict(catalog.properties)
        self._location = "/".join([warehouse_uri(warehouse), *identifier])
        self._catalog = quoted(catalog.name)
        self._identifier = identifier
        self._engine = engine

    @property
    def _name(self) -> str:
        return ".".join([self._catalog, *map(quoted, self._identifier)])

    def look(self) -> Table | None:
        """The table by its newest metadata file, or none."""
        fs, root = self._storage.filesystem(f"{self._location}/metadata")
        if not fs.exists(root):
            return None
        found = {}
        for path in fs.ls(root, detail=False):
            if name := re.fullmatch(r"v(\d+)(\.gz)?\.metadata\.json", path.rpartition("/")[2]):
                found[int(name.group(1))] = f"{self._location}/metadata/{name.group(0)}"
        return StaticTable.from_metadata(found[max(found)], self._properties) if found else None

    def create(self, schema: pa.Schema, partition_by: Sequence[PartitionText]) -> Table:
        """Make the table from a query without rows: Spark takes the types from it."""
        spec = ", ".join(map(_spark_partition, partition_by))
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _NEW_TABLE.items())
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self._name} USING iceberg {f'PARTITIONED BY ({spec})' if spec else ''} "
            f"TBLPROPERTIES ({properties}) AS SELECT * FROM staged"
        )
        self._engine().run(statement, schema=schema, settings=self._settings)
        return self._there()

    def change(self, table: Table, fit: Fit) -> Table:
        """Give the table what it lacks, in a commit for all that is added and one for each type."""
        statements = []
        if fit.added:
            added = (f"{quoted(*each.path)} {spark_type(iceberg_type(each.type))}" for each in fit.added)
            statements.append(f"ALTER TABLE {self._name} ADD COLUMNS ({', '.join(added)})")
        for each in fit.widened:
            kind = spark_type(iceberg_type(each.type))
            statements.append(f"ALTER TABLE {self._name} ALTER COLUMN {quoted(*each.path)} TYPE {kind}")
        self._engine().run(*statements, settings=self._settings)
        return self._there()

    def publish(self, seen: Table, branch: str, tag: str) -> None:
        """Move main to the head of a branch. Spark refuses it when main is not where the branch began.

        The tag follows in a commit of its own: until then the snapshot itself is all that holds the token.
        """
        head = self._there().metadata.refs[branch].snapshot_id
        table, to = literal(quoted(*self._identifier)), literal(branch)
        self._engine().run(
            f"CALL {self._catalog}.system.fast_forward(table => {table}, branch => 'main', to => {to})",
            f"ALTER TABLE {self._name} CREATE OR REPLACE TAG {quoted(tag)} AS OF VERSION {head} {RETAIN_TAG}",
            f"ALTER TABLE {self._name} DROP BRANCH {quoted(branch)}",
            settings=self._settings,
        )

    def drop(self, branches: Sequence[str]) -> None:
        """Remove branches."""
        if branches:
            statements = [f"ALTER TABLE {self._name} DROP BRANCH IF EXISTS {quoted(name)}" for name in branches]
            self._engine().run(*statements, settings=self._settings)

    def _there(self) -> Table:
        table = self.look()
        if table is None:
            raise NoSuchTableError(f"no metadata in {self._location}")
        return table


def _ref(
    name: str, kind: SnapshotRefType, snapshot_id: int, settings: Mapping[str, object] | None = None
) -> SetSnapshotRefUpdate:
    told = {"ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    return SetSnapshotRefUpdate.model_validate({**(settings or {}), **told})


def _tag(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """A tag that no expiry removes, also where the table says how long tags are kept."""
    return _ref(name, SnapshotRefType.TAG, snapshot_id, {"max-ref-age-ms": FOREVER_MS})


def _without(name: str) -> RemoveSnapshotRefUpdate:
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})


def _at(ref: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


def _spark_partition(entry: PartitionText) -> str:
    column = quoted(entry.column)
    if entry.transform == "identity":
        return column
    return f"{entry.transform}s({column})" if entry.size is None else f"{entry.transform}({entry.size}, {column})"
