"""An Iceberg table, read by pyiceberg at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError, ProgrammingError

from penstock.tables.table import TableState, gather, select_columns
from penstock.tables.types import plain_schema

_SQLITE = "sqlite:///"
_EMPTY = "no snapshot"


class IcebergLookup:
    """Implements `LookupTable`. `properties` are those of pyiceberg's `load_catalog`, and may hold secrets."""

    def __init__(self, name: str, table: str, catalog: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self.target = f"{table} in {properties.get('warehouse', catalog)}"
        self._table_name = table
        self._catalog_name = catalog
        self._properties = dict(properties)
        # A database that is no catalog yet has none of a catalog's tables.
        gone = (NoSuchTableError, NoSuchNamespaceError, OperationalError, ProgrammingError)
        self._standing = TableState(name, self.target, gone)
        self._open: Table | None = None

    def schema(self) -> pa.Schema:
        """The columns as they are now."""
        self.version()
        with self._standing.looking("reading the columns"):
            return self._columns()

    def version(self) -> str:
        """The id of the current snapshot."""
        with self._standing.looking("looking at the table"):
            self._open = self._client.load_table(self._table_name)
            snapshot = self._open.current_snapshot()
            return _EMPTY if snapshot is None else str(snapshot.snapshot_id)

    def estimated_bytes(self) -> int | None:
        """The sizes of the files, as the snapshot has them: packed."""
        self.version()
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return 0
        size = snapshot.summary.additional_properties.get("total-files-size") if snapshot.summary else None
        return int(size) if size is not None else None

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, at the snapshot that was looked at last."""
        if self._open is None:
            self.version()
        with self._standing.reading():
            wanted = select_columns(self.name, self._columns(), columns)
            return gather(self._batches(columns), wanted, most_bytes)

    @cached_property
    def _client(self) -> Catalog:
        uri = self._properties.get("uri", "")
        # Opening a SQLite file would make it.
        if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
            raise FileNotFoundError(self.target)
        return load_catalog(self._catalog_name, **self._properties)

    @property
    def _table(self) -> Table:
        assert self._open is not None
        return self._open

    def _columns(self) -> pa.Schema:
        return plain_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._table.current_snapshot() is None:
            return
        yield from self._table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()
