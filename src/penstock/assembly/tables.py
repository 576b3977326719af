"""The lookup tables of a run: opened by their `type:`, reloaded when they change, shipped to the steps.

A table that fits in its `memory` is read by the driver as Arrow and shipped to the tasks. A larger one is not read
here: Spark joins it with its own reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.assembly.reaching import database_tls
from penstock.config import ExpressionError
from penstock.config.arrow_types import parse_columns
from penstock.config.expressions import read_query
from penstock.config.tables import (
    CsvTableConfig,
    DeltaTableConfig,
    IcebergTableConfig,
    JsonTableConfig,
    LookupConfig,
    ParquetTableConfig,
    PostgresTableConfig,
)
from penstock.contracts import Transform
from penstock.errors import MissingError
from penstock.spark.internals import same_session
from penstock.storage import Storage
from penstock.tables import LookupTable
from penstock.transforms import Enrich, LocalRows, Sql, TableRows
from penstock.transforms.lookup import duplicate_keys

_MOST_BYTES = 2**31 - 1
"""The limit of an Arrow text column, regardless of `memory`."""


@dataclass(frozen=True)
class LoadedTable:
    """A table as used by a batch. `rows` is None if it is larger than its memory and joined by Spark."""

    name: str
    version: str
    rows: pa.Table | None
    changed: bool
    """Whether this version differs from that of the previous batch."""

    @property
    def notice(self) -> str:
        """What a person should know of the change."""
        what = "larger than its memory, joined by Spark" if self.rows is None else f"{self.rows.num_rows:,} rows"
        return f"table {self.name}: version {self.version} loaded, {what}"


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
        """The tables with at least these columns, for use at `now`, in seconds of any clock.

        With `refresh: on_change` every call checks the version; with a duration, at most one call in that time does.
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
            config, version = self._configs[name], held.loaded.version
            held.frame = _spark_frame(session, config, self.table(name), version, self._storage)
        held.frame.createOrReplaceTempView(f"`{name}`")

    def _current(self, name: str, columns: frozenset[str], now: float) -> LoadedTable:
        held = self._held.get(name)
        if held is not None and columns <= held.columns and not self._is_due(name, held, now):
            held.loaded = replace(held.loaded, changed=False)
            return held.loaded
        version = self.table(name).version()
        if held is not None and columns <= held.columns and version == held.loaded.version:
            held.looked = now
            held.loaded = replace(held.loaded, changed=False)
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
    """The table of the pipeline file. Its libraries are loaded only now; nothing is read yet."""
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


# A table that is larger than its memory, as a frame by a reader of Spark's own: the same columns in the same types.


def _spark_frame(session: Any, config: LookupConfig, table: LookupTable, version: str, storage: Storage) -> Any:
    """The table as a frame, not read yet. A value that is not of its column's type fails the query that meets it."""
    match config:
        case DeltaTableConfig():
            number = version.partition(" ")[0]
            return session.read.format("delta").option("versionAsOf", number).load(config.path)
        case IcebergTableConfig():
            return _iceberg_frame(session, config, table.name, storage)
        case ParquetTableConfig():
            schema = table.schema()
            return _typed(session, schema).parquet(config.path).select([_quoted(name) for name in schema.names])
        case CsvTableConfig():
            schema = table.schema()
            reader = _typed(session, _in_file_order(table, schema)).options(header=True, enforceSchema=False)
            frame = reader.options(mode="FAILFAST", multiLine=True).csv(config.path)
            return frame.select([_quoted(name) for name in schema.names])
        case JsonTableConfig():
            return _typed(session, table.schema()).option("mode", "FAILFAST").json(config.path)
        case PostgresTableConfig():
            raise MissingError(
                "TABLE_TOO_LARGE",
                f"table {table.name}: it is larger than its `memory`, and Spark does not read PostgreSQL here",
                context={"table": table.target, "memory": f"{config.memory:,} bytes"},
                hint="raise `memory`, or keep a copy of the table in Delta or Parquet",
            )


def _typed(session: Any, schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.read.schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _in_file_order(table: LookupTable, schema: pa.Schema) -> pa.Schema:
    """The columns in file order: Spark matches them by position, whatever the header says."""
    from penstock.tables.parquet import CsvLookup

    assert isinstance(table, CsvLookup)
    fields = {field.name: field for field in schema}
    return pa.schema([fields.get(name, pa.field(name, pa.string())) for name in table.names_in_files()])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _iceberg_frame(session: Any, config: IcebergTableConfig, name: str, storage: Storage) -> Any:
    from penstock.sinks.iceberg import open_catalog

    catalog = open_catalog(config.catalog, config.warehouse, storage)
    asked = catalog.spark_settings(config.warehouse)
    where = f"spark.sql.catalog.{catalog.name}.warehouse"
    held = session.conf.get(where, None)
    if held not in (None, asked[where]):
        raise MissingError(
            "TABLE_CATALOG_TAKEN",
            f"table {name}: it is larger than its `memory`, and Spark already uses another Iceberg warehouse",
            context={"table": config.warehouse, "in use": held},
            hint="raise `memory`, or keep the tables in one warehouse",
        )
    for key, value in asked.items():
        session.conf.set(key, value)
    return session.table(".".join(map(_quoted, [catalog.name, *config.table.split(".")])))


# The tables that the steps of a run join with.


class PendingRows:
    """Placeholder for the rows of a table that fits in memory, until they are read."""

    @property
    def value(self) -> bytes:
        """Never called: the rows replace it before a batch."""
        raise AssertionError("the table is read before the first batch")


@dataclass
class Lookups:
    """On the driver: the current tables of some steps."""

    tables: Tables
    steps: Sequence[Transform]
    session: Any
    tell: Callable[[str], None]
    _loaded: dict[str, LoadedTable] = field(default_factory=dict)
    _carried: dict[tuple[str, str], TableRows] = field(default_factory=dict)
    """What was shipped to the tasks for each step and version."""
    _asked: set[tuple[str, str]] = field(default_factory=set)

    def refresh(self) -> set[str]:
        """Check the tables; returns the names of new or changed ones."""
        found = self.tables.current(self._wanted(), time.monotonic())
        fresh = {name for name, table in found.items() if table.changed or name not in self._loaded}
        for name in sorted(fresh & self._loaded.keys()):
            self.tell(found[name].notice)
        self._loaded = found
        return fresh

    def held(self, steps: Iterable[Transform]) -> tuple[Transform, ...]:
        """The steps, with the rows of the tables that fit in memory."""
        return tuple(self._with_rows(step) if isinstance(step, Enrich) and step.rows else step for step in steps)

    def views(self, session: Any) -> None:
        """Make the tables that Spark reads views of a session."""
        for name in self._by_spark():
            self.tables.view(session, name)
        for step in self.steps:
            if isinstance(step, Enrich) and step.rows is None:
                self._refuse_duplicates(session, step)

    def _refuse_duplicates(self, session: Any, step: Enrich) -> None:
        """Load each version of a table that Spark joins only once."""
        query, key = step.duplicates_query(), (repr(step), self._loaded[step.table].version)
        if query is None or key in self._asked:
            return
        [found] = session.sql(query).collect()
        if found[0]:
            raise duplicate_keys(step.table, list(step.on.values()), found[0])
        self._asked.add(key)

    def _with_rows(self, step: Enrich) -> Enrich:
        table = self._loaded[step.table]
        if table.rows is None:
            raise MissingError(
                "TABLE_TOO_LARGE",
                f"table {step.table} has grown beyond its memory",
                hint=f"restart: Spark then joins it; or raise tables.{step.table}.memory",
            )
        key = (repr(step), table.version)
        if key not in self._carried:
            self._carried = {k: rows for k, rows in self._carried.items() if k[0] != key[0]}
            packed = step.pack(table.rows)
            session = self.session
            self._carried[key] = LocalRows(packed) if session is None else session.sparkContext.broadcast(packed)
        return step.with_rows(self._carried[key])

    def _by_spark(self) -> set[str]:
        """The tables that SQL names, or that are too large for the tasks."""
        joined = {step.table for step in self.steps if isinstance(step, Enrich) and step.rows is None}
        return joined | {name for step in self.steps if isinstance(step, Sql) for name in self._named(step)}

    def _named(self, step: Sql) -> list[str]:
        try:
            named = {name.lower() for name in read_query(step.query).tables}
        except ExpressionError:
            return []
        return [name for name in self.tables.names if name.lower() in named]

    def _wanted(self) -> dict[str, Sequence[str]]:
        wanted: dict[str, Sequence[str]] = {name: self.tables.schema(name).names for name in self._by_spark()}
        for step in self.steps:
            if isinstance(step, Enrich):
                wanted[step.table] = sorted({*wanted.get(step.table, ()), *step.needed})
        return wanted
