"""A Delta table at its path: opened, made where it is not there, and given the columns and types that the rows need.

Enters: the schema of the rows, and what `evolve` allows. Leaves: the open table, and how the rows go into it. delta-rs
neither changes a type nor writes to a table whose types were changed (the feature `typeWidening`): Spark SQL changes
it, and from then on every commit goes through Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.config.arrow_types import arrow_to_ddl
from penstock.contracts import SqlEngine
from penstock.errors import MissingError, PenstockError
from penstock.sinks.delta.failures import EngineError, engine_errors, is_conflict, sink_failure, table_changed
from penstock.sinks.delta.schema import (
    check_partitions,
    check_schema,
    complete_protocol,
    delta_type,
    held_columns,
    lacking_fields,
    refuse_unsupported,
    unsupported,
)
from penstock.sinks.delta.tail import CHECKPOINT_INTERVAL
from penstock.sinks.evolution import Evolve, Fit, Fitting
from penstock.sinks.files import TableFolder, staged_batch
from penstock.sinks.spark_sql import quoted, require_engine
from penstock.storage import Storage

CHANGING = "changing the table's columns"


def add_by_delta_rs(table: DeltaTable, fit: Fit) -> None:
    """Add what the table lacks; it must not bind its writers to Spark."""
    table.alter.add_columns(lacking_fields(table, fit.taken))


def alter_by_spark(sink: str, sql: SqlEngine | None, table: str, fit: Fit) -> None:
    """Add what the table lacks and widen what is too narrow. `table` is its name in a statement."""
    engine = require_engine(sql, sink, CHANGING)
    try:
        with engine_errors():
            engine.run(*alter_statements(table, fit))
    except EngineError as error:
        raise sink_failure(sink, CHANGING, error) from error


def alter_statements(table: str, fit: Fit) -> Iterator[str]:
    """The statements that change the table, in one commit each."""
    if fit.added:
        added = (f"{quoted(*each.path)} {spark_type(each.type)}" for each in fit.added)
        yield f"ALTER TABLE {table} ADD COLUMNS ({', '.join(added)})"
    if fit.widened:
        yield f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        widened = (f"{quoted(*each.path)} TYPE {spark_type(each.type)}" for each in fit.widened)
        yield f"ALTER TABLE {table} ALTER COLUMN {', '.join(widened)}"


def spark_type(kind: pa.DataType) -> str:
    """A type in a Spark SQL statement. Whatever is inside of it may be null."""
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(_members(list(kind)))}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    return arrow_to_ddl(kind)


def _members(fields: Sequence[pa.Field]) -> Iterator[str]:
    return (f"{quoted(each.name)}: {spark_type(each.type)}" for each in fields)


def uri_of(folder: TableFolder, path: str = "") -> str:
    """A path in the form that Spark takes, wherever its own default file system is."""
    if folder.local is None:
        return f"{folder.uri}/{path}".rstrip("/")
    return f"file:{Path(folder.local, path).absolute()}"


def table_name(folder: TableFolder) -> str:
    """The table of a folder in a statement."""
    return quoted("delta", uri_of(folder))


_PREPARE_TRIES = 5
_LOOKS = 5
_LOOK_SECONDS = 0.1


class FittedTable:
    """The table of one sink as it was last looked at. Kept open between batches."""

    def __init__(self, sink: str, path: str, partition_by: Sequence[str], evolve: Evolve, storage: Storage) -> None:
        self.path = path
        self.partition_by = tuple(partition_by)
        self.folder = TableFolder(path, storage)
        self.fitting = Fitting(sink, evolve, describe=delta_type)
        self.through_spark = False
        """Whether rows may be committed by Spark."""
        self.seen: DeltaTable | None = None
        self._sink = sink
        self._storage = storage

    def __getstate__(self) -> dict[str, Any]:
        # An open table does not pickle, and tasks need none.
        return {**self.__dict__, "seen": None}

    def ready(self, schema: pa.Schema, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """The table as these rows need it. Pipelines that share one, such as a quarantine, may make it at once."""
        for left in reversed(range(_PREPARE_TRIES)):
            try:
                table = self.existing() or self._create(self.writable(schema, None))
                fit = self.fit(table, schema)
                if fit.changes_target:
                    table, fit = self._change(table, schema, fit, sql)
                if not unsupported(table):
                    complete_protocol(table)
                return table, fit
            except CommitFailedError as error:
                if not left or not is_conflict(error):
                    raise
        raise AssertionError("unreachable")

    def existing(self) -> DeltaTable | None:
        """The table that is there, if any; refused where other files are in its place."""
        found = None
        # Files without a table may be one that is being made at this moment: so more than one look.
        for _ in range(_LOOKS):
            table = None if self.folder.is_file() else self.now()
            if table is not None or (found := self._other_file()) is None:
                return table
            time.sleep(_LOOK_SECONDS)
        raise MissingError(
            "SINK_PATH_NOT_A_TABLE",
            f"sink {self._sink}: the folder holds files and no Delta table",
            context={"path": self.path, "found": found},
            hint="give the sink an empty folder, or convert the files to a Delta table first",
        )

    def _other_file(self) -> str | None:
        """Some file in the folder, unless all are of one batch that was staged while its table was being removed.

        Files of several batches are a table that has lost its log, and no place for a new one.
        """
        batches: set[str | None] = set()
        for name in self.folder.all_files():
            batches.add(staged_batch(name))
            if None in batches or len(batches) > 1:
                return name
        return None

    def now(self) -> DeltaTable | None:
        """The table as it is now, or none. A refresh of an open one reads only what is new."""
        try:
            if self.seen is None:
                self.seen = self.opened()
            else:
                self.seen.update_incremental()
        except TableNotFoundError:
            self.seen = None
        return self.seen

    def opened(self) -> DeltaTable:
        """The table, opened apart from the one that is kept."""
        return DeltaTable(self.path, storage_options=self._options)

    def compared(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting | None = None) -> Fit:
        """How the rows go into the table, whoever writes them."""
        self.writable(schema, table)
        check_partitions(self._sink, table, self.partition_by)
        return (fitting or self.fitting).fit(schema, held_columns(table))

    def fit(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting | None = None) -> Fit:
        """How the rows go into the table; refused where it asks for Spark and is written without."""
        bound = unsupported(table)
        if bound and not self.through_spark:
            hint = "start again: the table is then written through Spark; or drop the feature from the table"
            raise refuse_unsupported(self._sink, bound, hint)
        return self.compared(table, schema, fitting)

    def writable(self, schema: pa.Schema, table: DeltaTable | None) -> pa.Schema:
        """The columns that matter to the table; refused where no Delta table at this path could hold them."""
        if self.folder.local is not None and set("#?%") & set(self.path):
            # delta-rs 1.6 finds no history under such a path, and with it no token.
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self._sink}: a table's path cannot have #, ? or % in it",
                context={"path": self.path},
            )
        if table is not None and self.fitting.evolve == "ignore":
            known = {each.name.lower() for each in table.schema().fields}
            schema = pa.schema([each for each in schema if each.name.lower() in known])
        check_schema(self._sink, schema, self.partition_by)
        return schema

    def _change(self, table: DeltaTable, schema: pa.Schema, fit: Fit, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """Give the table what it lacks. Another run that does the same at the same time may be first."""
        failure: Exception | None = None
        try:
            if fit.widened or unsupported(table):
                alter_by_spark(self._sink, sql, table_name(self.folder), fit)
            else:
                add_by_delta_rs(table, fit)
        except (PenstockError, DeltaError) as error:
            failure = error
        now = self.now() or table
        fit = self.fit(now, schema)
        if fit.changes_target:
            raise failure or table_changed(self._sink)
        return now, fit

    def _create(self, schema: pa.Schema) -> DeltaTable:
        self.seen = DeltaTable.create(
            self.path,
            schema=Schema.from_arrow(pa.schema([field.remove_metadata() for field in schema])),
            mode="ignore",
            partition_by=list(self.partition_by),
            configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
            storage_options=self._options,
        )
        return self.seen

    @property
    def _options(self) -> dict[str, str] | None:
        return self._storage.for_delta_at(self.path)
