"""An Iceberg table, read by pyiceberg at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError, ProgrammingError

from penstock.tables.table import StoredTable
from penstock.tables.types import plain_schema

_SQLITE = "sqlite:///"


class IcebergLookup(StoredTable):
    """Implements `LookupTable`. `properties` are those of pyiceberg's `load_catalog`, and may hold secrets."""

    # A database without the tables of a catalog raises one of the last two.
    gone = (NoSuchTableError, NoSuchNamespaceError, OperationalError, ProgrammingError)

    def __init__(self, name: str, table: str, catalog: str, properties: Mapping[str, str]) -> None:
        super().__init__(name, f"{table} in {properties.get('warehouse', catalog)}")
        self._table_name = table
        self._catalog_name = catalog
        self._properties = dict(properties)
        self._open: Table | None = None

    def _refresh(self) -> None:
        self._open = self._client.load_table(self._table_name)

    def _version(self) -> str:
        snapshot = self._table.current_snapshot()
        return "no snapshot" if snapshot is None else str(snapshot.snapshot_id)

    def _columns(self) -> pa.Schema:
        return plain_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    def _size_bytes(self) -> int | None:
        """The compressed size of the files, from the snapshot."""
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return 0
        size = snapshot.summary.additional_properties.get("total-files-size") if snapshot.summary else None
        return int(size) if size is not None else None

    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._table.current_snapshot() is not None:
            yield from self._table.scan(selected_fields=tuple(wanted.names)).to_arrow_batch_reader()

    @cached_property
    def _client(self) -> Catalog:
        uri = self._properties.get("uri", "")
        # Opening a SQLite file would create it.
        if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
            raise FileNotFoundError(self.target)
        return load_catalog(self._catalog_name, **self._properties)

    @property
    def _table(self) -> Table:
        assert self._open is not None
        return self._open
