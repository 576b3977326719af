"""The tables of a pipeline in a run: opened by their `type:`, read when they changed, shown to Spark where needed.

A table that fits in its `memory` is held by the driver as Arrow, and goes from there to the tasks. A larger one is
never read here: Spark joins it, by a reader of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.assembly.reaching import database_tls
from penstock.config.arrow_types import parse_columns
from penstock.config.tables import (
    CsvTableConfig,
    DeltaTableConfig,
    IcebergTableConfig,
    JsonTableConfig,
    LookupConfig,
    ParquetTableConfig,
    PostgresTableConfig,
)
from penstock.spark.internals import same_session
from penstock.storage import Storage
from penstock.tables import LookupTable

_MOST_BYTES = 2**31 - 1
"""What an Arrow column of text can hold, whatever `memory` allows."""


@dataclass(frozen=True)
class LoadedTable:
    """A table as it is used by a batch. `rows` is none where it is larger than its memory, and joined by Spark."""

    name: str
    version: str
    rows: pa.Table | None
    changed: bool
    """Whether this is another version than that of the batch before."""

    @property
    def notice(self) -> str:
        """What a person should know of the change."""
        what = "larger than its memory, joined by Spark" if self.rows is None else f"{self.rows.num_rows:,} rows"
        return f"table {self.name}: version {self.version} taken up, {what}"


@dataclass
class _CachedTable:
    loaded: LoadedTable
    columns: frozenset[str]
    looked: float
    frame: Any = None


class Tables:
    """The tables of one pipeline, on the driver."""

    def __init__(
        self,
        configs: Mapping[str, LookupConfig],
        given: Mapping[str, LookupTable] | None = None,
        storage: Storage = Storage(),
    ) -> None:
        self._storage = storage
        self._configs = dict(configs)
        self._tables: dict[str, LookupTable] = dict(given or {})
        self._held: dict[str, _CachedTable] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the steps know them by."""
        return tuple(self._configs)

    def table(self, name: str) -> LookupTable:
        """The table, opened once."""
        if name not in self._tables:
            self._tables[name] = open_table(name, self._configs[name], self._storage)
        return self._tables[name]

    def schema(self, name: str) -> pa.Schema:
        """The columns of a table."""
        return self.table(name).schema()

    def may_fit(self, name: str) -> bool:
        """Whether the table fits in its memory, as far as its metadata tell; the rows themselves may still not."""
        size = self.table(name).estimated_bytes()
        return size is None or size <= self._memory(name)

    def current(self, wanted: Mapping[str, Sequence[str]], now: float) -> dict[str, LoadedTable]:
        """The tables with at least these columns, as they are to be used at `now`, in seconds of any clock.

        With `refresh: on_change` every call looks at the version; with a duration at most one call in that time.
        """
        return {name: self._current(name, frozenset(columns), now) for name, columns in wanted.items()}

    def view(self, session: Any, name: str) -> None:
        """Make the table, as `current` gave it last, a temporary view of its name in a session of Spark."""
        held = self._held[name]
        if held.frame is not None and same_session(held.frame.sparkSession, session):
            return
        rows = held.loaded.rows
        if rows is not None:
            held.frame = session.createDataFrame(rows)
        else:
            from penstock.assembly.table_views import spark_frame

            held.frame = spark_frame(session, self._configs[name], self.table(name), held.loaded.version, self._storage)
        held.frame.createOrReplaceTempView(f"`{name}`")

    def _current(self, name: str, columns: frozenset[str], now: float) -> LoadedTable:
        held = self._held.get(name)
        if held is not None and columns <= held.columns and not self._is_due(name, held, now):
            held.loaded = _unchanged(held.loaded)
            return held.loaded
        version = self.table(name).version()
        if held is not None and columns <= held.columns and version == held.loaded.version:
            held.looked = now
            held.loaded = _unchanged(held.loaded)
            return held.loaded
        if held is not None:
            columns |= held.columns
        changed = held is not None and version != held.loaded.version
        rows = self.table(name).read(sorted(columns), self._memory(name)) if self.may_fit(name) else None
        loaded = LoadedTable(name, version, rows, changed)
        self._held[name] = _CachedTable(loaded, columns, now)
        return loaded

    def _is_due(self, name: str, held: _CachedTable, now: float) -> bool:
        refresh = self._configs[name].refresh
        return not isinstance(refresh, timedelta) or now - held.looked >= refresh.total_seconds()

    def _memory(self, name: str) -> int:
        return min(self._configs[name].memory, _MOST_BYTES)


def open_table(name: str, config: LookupConfig, storage: Storage = Storage()) -> LookupTable:
    """The table that the pipeline file describes. Its libraries are loaded only now; nothing is looked at yet."""
    match config:
        case DeltaTableConfig():
            from penstock.tables.delta import DeltaLookup

            return DeltaLookup(name, config.path, storage)
        case IcebergTableConfig():
            return _iceberg(name, config, storage)
        case ParquetTableConfig():
            from penstock.tables.parquet import ParquetLookup

            return ParquetLookup(name, config.path, storage)
        case CsvTableConfig():
            from penstock.tables.parquet import CsvLookup

            return CsvLookup(name, config.path, parse_columns(config.columns), storage)
        case JsonTableConfig():
            from penstock.tables.parquet import JsonLookup

            return JsonLookup(name, config.path, parse_columns(config.columns), storage)
        case PostgresTableConfig():
            from penstock.tables.postgres import PostgresLookup

            tls = database_tls(config.security, f"table {name}: security")
            return PostgresLookup(name, config.url.get_secret_value(), config.table, tls)


def _iceberg(name: str, config: IcebergTableConfig, storage: Storage) -> LookupTable:
    from penstock.sinks.iceberg import open_catalog
    from penstock.tables.iceberg import IcebergLookup

    catalog = open_catalog(config.catalog, config.warehouse, storage)
    return IcebergLookup(name, config.table, catalog.name, catalog.client_properties(config.warehouse))


def _unchanged(loaded: LoadedTable) -> LoadedTable:
    return LoadedTable(loaded.name, loaded.version, loaded.rows, changed=False) if loaded.changed else loaded
