"""A Delta table, read by delta-rs at one version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from penstock.storage import Storage
from penstock.tables.table import TableState, gather, select_columns
from penstock.tables.types import plain_schema


class DeltaLookup:
    """Implements `LookupTable`. The table is kept open: a look reads only the commits that are new."""

    def __init__(self, name: str, path: str, storage: Storage = Storage()) -> None:
        self.name = name
        self.target = path
        self._storage = storage
        self._standing = TableState(name, path, (TableNotFoundError,))
        self._open: DeltaTable | None = None
        self._commit: object = None
        self._first_id: str | None = None

    def schema(self) -> pa.Schema:
        """The columns of the newest version."""
        self.version()
        with self._standing.looking("reading the columns"):
            return plain_schema(pa.schema(self._table.schema().to_arrow()))

    def version(self) -> str:
        """The number of the newest version; of another table in the same place also its id."""
        with self._standing.looking("looking at the table"):
            if self._open is not None and self._commit is not None and self._commit == self._commit_mark():
                self._open.update_incremental()
            else:
                self._open = DeltaTable(self.target, storage_options=self._storage.for_delta_at(self.target))
            self._commit = self._commit_mark()
            identity = str(self._table.metadata().id)
            self._first_id = self._first_id or identity
            number = str(self._table.version())
            return number if identity == self._first_id else f"{number} of {identity}"

    def estimated_bytes(self) -> int | None:
        """The sizes of the files, as the log has them: packed."""
        self.version()
        with self._standing.looking("looking at the table"):
            sizes = pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes")
            return sum(map(int, sizes.to_pylist()))

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, at the version that was looked at last."""
        if self._open is None:
            self.version()
        with self._standing.reading():
            held = plain_schema(pa.schema(self._table.schema().to_arrow()))
            wanted = select_columns(self.name, held, columns)
            return gather(self._batches(columns), wanted, most_bytes)

    @property
    def _table(self) -> DeltaTable:
        assert self._open is not None
        return self._open

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # By delta-rs's own engine: it knows deletion vectors, which Arrow's reader of files does not.
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        reader = QueryBuilder().register("held", self._table).execute(f"SELECT {names} FROM held")
        yield from pa.RecordBatchReader.from_stream(reader)

    def _commit_mark(self) -> object:
        """What tells the newest commit's file from that of a table that replaced this one; none where none can."""
        if self._open is None or "://" in self.target:
            return None
        try:
            found = (Path(self.target) / "_delta_log" / f"{self._open.version():020}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns
