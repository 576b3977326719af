"""A Delta table, read by delta-rs at one version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from penstock.storage import Storage
from penstock.tables.table import StoredTable
from penstock.tables.types import plain_schema


class DeltaLookup(StoredTable):
    """Implements `LookupTable`. The table stays open: a refresh reads only new commits."""

    gone = (TableNotFoundError,)

    def __init__(self, name: str, path: str, storage: Storage = Storage()) -> None:
        super().__init__(name, path)
        self._storage = storage
        self._open: DeltaTable | None = None
        self._commit: object = None
        self._first_id: str | None = None

    def _refresh(self) -> None:
        if self._open is not None and self._commit is not None and self._commit == self._commit_mark():
            self._open.update_incremental()
        else:
            self._open = DeltaTable(self.target, storage_options=self._storage.for_delta_at(self.target))
        self._commit = self._commit_mark()

    def _version(self) -> str:
        """The version's number, and the table's id where another table has replaced the first one."""
        identity = str(self._table.metadata().id)
        self._first_id = self._first_id or identity
        number = str(self._table.version())
        return number if identity == self._first_id else f"{number} of {identity}"

    def _columns(self) -> pa.Schema:
        return plain_schema(pa.schema(self._table.schema().to_arrow()))

    def _size_bytes(self) -> int:
        """The compressed size of the files, from the log."""
        sizes = pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes")
        return sum(map(int, sizes.to_pylist()))

    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        # By delta-rs's own engine: it knows deletion vectors, which Arrow's reader of files does not.
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted.names)
        reader = QueryBuilder().register("lookup", self._table).execute(f"SELECT {names} FROM lookup")
        yield from pa.RecordBatchReader.from_stream(reader)

    @property
    def _table(self) -> DeltaTable:
        assert self._open is not None
        return self._open

    def _commit_mark(self) -> object:
        """Identifies the file of the newest commit, so that a replaced table is noticed; None on object stores."""
        if self._open is None or "://" in self.target:
            return None
        try:
            found = (Path(self.target) / "_delta_log" / f"{self._open.version():020}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns
