"""Delta append, exactly once: files staged in tasks, named in the log by one commit that carries the position.

A table that asks more of its writers than delta-rs can give (row tracking, column mapping, constraints, ...) is
written by Spark instead, from rows staged next to it, with the same position.

A sink that `replaces` ranges takes the rows of these out of the table in the same commit that puts the staged ones in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import pyarrow as pa

from penstock.contracts import BaseSink, SqlEngine, Stage
from penstock.model import BatchToken, Guarantee, Manifest, OffsetRange, Position, SlotAttempt
from penstock.sinks.delta.beside_stage import DeltaRowsStage, StagedDeltaRows, StagedFolder
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.maintenance import DeltaMaintenance
from penstock.sinks.delta.replace import (
    DeltaReplacement,
    check_replaceable,
    only_by_spark,
    records_held,
    replace_statement,
)
from penstock.sinks.delta.schema import columns_of, table_columns, table_name, unsupported
from penstock.sinks.delta.stage import INDEXED_COLUMNS, DeltaStage, StagedDeltaFile
from penstock.sinks.delta.table import SinkTable
from penstock.sinks.evolution import Evolve, Fit, written_columns
from penstock.sinks.files.joining import JOINER, JoinedFiles
from penstock.sinks.files.stage import items_of
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.sinks.spark_sql import quoted
from penstock.storage import Storage


class DeltaTableSink(BaseSink):
    """What appends and merges share. Implements most of `contracts.Sink`."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        storage: Storage = Storage(),
        *,
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by)
        self.evolve = evolve
        self.keep_coordinates = keep_coordinates
        self.target_file_bytes = target_file_bytes
        self.cluster_by = tuple(cluster_by)
        self._storage = storage
        self._table = SinkTable(pipeline, name, path, self.partition_by, evolve, storage)
        self._beside = StagedFolder(self._table, storage, target_file_bytes)
        self._sql: SqlEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sql": None}

    @property
    def target(self) -> str:
        """The table's path."""
        return self.path

    def use(self, sql: SqlEngine) -> None:
        """Take the engine to write through."""
        self._sql = sql

    def check(self, schema: pa.Schema) -> None:
        """Check whether the table, if it exists, can take the rows, with the changes that `evolve` allows."""
        self._fit(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Read only: what `prepare` would change in the table for these rows, and which columns it would leave out."""
        fit = self._fit(schema)
        return ["create table"] if fit is None else fit.changes()

    def position(self) -> Position | None:
        """The position of the table, whichever query committed last, without what a RESTORE took back."""
        return self._table.position()

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records in these ranges that the table has rows of; none where the rows have no coordinates."""
        return records_held(self._table, ranges, self._sql) if self.keep_coordinates else None

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have a position in the table."""
        return self._table.other_writers()

    def maintenance(self) -> DeltaMaintenance:
        """The maintenance of the table."""
        return DeltaMaintenance(
            self.pipeline, self.name, self.path, self.target_file_bytes, self.cluster_by, self._storage
        )

    def has_staged(self, manifests: Sequence[Manifest]) -> bool:
        """Whether the staged files are still in the table's folder, or next to it."""
        paths = (path for rows in items_of(manifests, StagedDeltaRows) for path in rows.paths)
        return all(self._table.folder.has(file.path) for file in items_of(manifests, StagedDeltaFile)) and all(
            map(self._beside.has, paths)
        )

    def _fit(self, schema: pa.Schema) -> Fit | None:
        """How the rows go into the table; none where there is no table. Raises where they cannot."""
        return self._table.check(self._written(schema))

    def _written(self, schema: pa.Schema) -> pa.Schema:
        return written_columns(schema, keep_coordinates=self.keep_coordinates)


class DeltaSink(DeltaTableSink):
    """Implements `contracts.Sink`: rows are appended, or replace those of some ranges."""

    replaces: tuple[OffsetRange, ...] = ()
    _replaced_by_spark = False

    def replacing(self, ranges: Sequence[OffsetRange]) -> DeltaSink:
        """The same sink, whose commits take the rows of these ranges out of the table as well."""
        made = copy(self)
        made.replaces = tuple(ranges)
        return made

    def would_replace(self) -> int | None:
        """Read only: how many rows of the table are in the ranges; none where only Spark could count them."""
        with sink_failures(self.name, "counting rows to replace"):
            table = self._table.open()
            if table is None:
                return 0
            if only_by_spark(table):
                return None
            return DeltaReplacement(self._table, self.replaces).count(table)

    @property
    def needs_sql(self) -> bool:
        """Whether only Spark can write the table as it is now, or may have to widen its types."""
        if self.evolve == "widen":
            return True
        table = self._table.open()
        return table is not None and bool(only_by_spark(table) if self.replaces else unsupported(table))

    @property
    def note(self) -> str | None:
        """Why the table is written through Spark, for people; none where it is not."""
        table = self._table.open()
        features = unsupported(table) if table is not None else []
        return f"written through Spark, because the table has {', '.join(features)}" if features else None

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        if self.replaces:
            self._replaced_by_spark = check_replaceable(self._table, schema, kept=self.keep_coordinates)
        self._table.prepare(self._written(schema), sql=self._sql, through_spark=self._sql is not None)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin the files of one attempt of a slot."""
        written = self._table.staged(self._written(schema))
        if self._table.spark_features or self._replaced_by_spark:
            files = self._beside.files(token, writer, written)
            return DeltaRowsStage(self.name, files, writer, written, self.partition_by)
        return self._data_files(token, writer, written)

    def _data_files(self, token: BatchToken, writer: SlotAttempt, written: pa.Schema) -> DeltaStage:
        indexed = int(self._table.settings.get("delta.dataSkippingNumIndexedCols") or INDEXED_COLUMNS)
        folder, prefix = self._table.folder, self._table.prefix(token)
        size = self.target_file_bytes
        return DeltaStage(self.name, folder, prefix, writer, written, self.partition_by, indexed, size)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Put the staged rows into the table, with the position, in one commit. An empty batch is a commit too."""
        files = items_of(manifests, StagedDeltaFile)
        paths = [path for item in items_of(manifests, StagedDeltaRows) for path in item.paths]
        by_spark = bool(self._table.spark_features) or self._replaced_by_spark
        with self._table.landing(position):
            if self.replaces and not by_spark:
                self._replacement(position.last).land(position, files, onto)
            elif self.replaces or paths or (by_spark and not files and not self._table.allows_bare_entries()):
                self._insert(position, paths, onto)
            else:
                self._append(position, files, onto)
        self._beside.clean(paths)

    @property
    def commits_under_lock(self) -> bool:
        """An append of files and a compaction never meet; rows that are replaced may be in a file that it rewrites."""
        return bool(self.replaces)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the position refuses it. It walks
        through the table's folder, so it is for a batch that lost an attempt, not for every batch.
        """
        with sink_failures(self.name, f"removing leftovers of batch {token.batch_id}"):
            self._beside.discard(token)
            folder = self._table.folder
            named = {file.path for file in items_of(manifests, StagedDeltaFile)}
            leftovers = set(folder.data_files(self._table.prefix(token))) - named
            committed = self._table.committed_files(token) if leftovers else None
            if committed is not None:
                for path in leftovers - committed:
                    folder.remove(path)

    def _fit(self, schema: pa.Schema) -> Fit | None:
        if self.replaces:
            check_replaceable(self._table, schema, kept=self.keep_coordinates)
        return super()._fit(schema)

    def _replacement(self, token: BatchToken) -> DeltaReplacement:
        return DeltaReplacement(
            self._table, self.replaces, lambda writer, schema: self._data_files(token, writer, schema)
        )

    def _append(self, position: Position, files: Sequence[StagedDeltaFile], onto: Position | None) -> None:
        """Add the files to the log. Small ones are joined first, once the position is known to be `onto`."""
        self._table.require_position(onto)
        self._table.require_up_to_date(files)
        schema = self._table.written or pa.schema([])
        joined = JoinedFiles(
            self._table.folder,
            files,
            self.target_file_bytes,
            lambda file: file.partition_values,
            lambda: self._data_files(position.last, JOINER, schema),
        )
        self._table.append(position, joined.files(), onto)
        with suppress(OSError):  # a file that stays is in no version, and goes with the next VACUUM
            joined.remove_originals()

    def _insert(self, position: Position, paths: Sequence[str], onto: Position | None) -> None:
        table = self._table.table_at(onto)
        columns = columns_of(table, self._table.written)
        names = ", ".join(quoted(name) for name in columns.names)
        target = table_name(self._table.folder)
        if self.replaces:
            statement = replace_statement(target, columns, table_columns(table), self.replaces)
        else:
            statement = f"INSERT INTO {target} ({names}) SELECT {names} FROM staged"
        self._beside.run(self._sql, statement, position, paths, columns)
