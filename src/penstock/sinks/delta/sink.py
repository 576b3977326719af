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

from penstock.contracts import SqlEngine, Stage
from penstock.model import COMPUTED, COORDINATES, BatchToken, Guarantee, Manifest, OffsetRange, Position, SlotAttempt
from penstock.sinks.delta.beside_stage import FolderStage, StagedFolder, staged_items
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.fitted import table_name
from penstock.sinks.delta.maintenance import DeltaMaintenance
from penstock.sinks.delta.replace import (
    DeltaReplacement,
    check_replaceable,
    only_by_spark,
    records_held,
    replace_statement,
)
from penstock.sinks.delta.schema import columns_of, held_columns
from penstock.sinks.delta.stage import INDEXED_COLUMNS, DeltaStage, StagedFile
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.evolution import Evolve, Fit
from penstock.sinks.files.joining import JOINER, JoinedFiles
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.sinks.spark_sql import quoted
from penstock.storage import Storage


class DeltaTableSink:
    """What a sink over one Delta table is, whichever way its rows go in. Implements most of `contracts.Sink`."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        partition_by: Sequence[str] | None,
        evolve: Evolve,
        keep_coordinates: bool,
        storage: Storage,
        target_file_bytes: int,
        cluster_by: Sequence[str],
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by or ())
        self.evolve = evolve
        self.keep_coordinates = keep_coordinates
        self.target_file_bytes = target_file_bytes
        self.cluster_by = tuple(cluster_by)
        self._storage = storage
        self._table = TokenTable(pipeline, name, path, self.partition_by, evolve, storage)
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
        """Look whether the table, if it is there, can take the rows, with what `evolve` may change in it."""
        self._fit(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Only look: what `prepare` would change in the table for these rows, and what it would leave out of them."""
        fit = self._fit(schema)
        return ["create table"] if fit is None else fit.told()

    def position(self) -> Position | None:
        """Where the table stands, whichever query committed last, past what a RESTORE took back."""
        return self._table.position()

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records in these ranges that the table holds a row of; none where the rows do not say."""
        return records_held(self._table, ranges, self._sql) if self.keep_coordinates else None

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have a position in the table."""
        return self._table.other_writers()

    def maintenance(self) -> DeltaMaintenance:
        """The care of the table."""
        return DeltaMaintenance(
            self.pipeline, self.name, self.path, self.target_file_bytes, self.cluster_by, self._storage
        )

    def _fit(self, schema: pa.Schema) -> Fit | None:
        """How the rows go into the table; none where there is no table. Raises where they cannot."""
        return self._table.check(self._written(schema))

    def _written(self, schema: pa.Schema) -> pa.Schema:
        left_out = () if self.keep_coordinates else (COORDINATES,)
        return pa.schema([f for f in schema if f.name not in left_out and not f.name.startswith(COMPUTED)])


class DeltaSink(DeltaTableSink):
    """Implements `contracts.Sink` and `contracts.SqlSink`: rows are appended, or replace those of some ranges."""

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        partition_by: Sequence[str] | None = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        storage: Storage = Storage(),
        replaces: Sequence[OffsetRange] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
    ) -> None:
        super().__init__(
            pipeline, name, path, partition_by, evolve, keep_coordinates, storage, target_file_bytes, cluster_by
        )
        self.replaces = tuple(replaces)
        self._replaced_by_spark = False

    def replacing(self, ranges: Sequence[OffsetRange]) -> DeltaSink:
        """The same sink, whose commits take the rows of these ranges out of the table as well."""
        made = copy(self)
        made.replaces = tuple(ranges)
        return made

    def would_replace(self) -> int | None:
        """Only look: how many rows of the table lie in the ranges; none where only Spark could tell."""
        with sink_failures(self.name, "counting rows to replace"):
            table = self._table.look()
            if table is None:
                return 0
            if only_by_spark(table):
                return None
            return DeltaReplacement(self._table, self.replaces).count(table)

    @property
    def needs_sql(self) -> bool:
        """Whether only Spark can write the table as it is now, or may have to widen its types."""
        if self.evolve == "widen" or self._table.bound_by():
            return True
        table = self._table.look() if self.replaces else None
        return table is not None and bool(only_by_spark(table))

    @property
    def note(self) -> str | None:
        """Why the table is written through Spark, for people; none where it is not."""
        bound = self._table.bound_by()
        return f"written through Spark, for the table has {', '.join(bound)}" if bound else None

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        if self.replaces:
            self._replaced_by_spark = check_replaceable(self._table, schema, kept=self.keep_coordinates)
        self._table.prepare(self._written(schema), sql=self._sql, through_spark=self._sql is not None)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin the files of one attempt of a slot."""
        written = self._table.staged(self._written(schema))
        if self._table.bound or self._replaced_by_spark:
            files = self._beside.files(token, writer, written)
            return FolderStage(self.name, files, writer, written, self.partition_by)
        return self._data_files(token, writer, written)

    def _data_files(self, token: BatchToken, writer: SlotAttempt, written: pa.Schema) -> DeltaStage:
        indexed = int(self._table.settings.get("delta.dataSkippingNumIndexedCols") or INDEXED_COLUMNS)
        folder, prefix = self._table.folder, self._table.prefix(token)
        size = self.target_file_bytes
        return DeltaStage(self.name, folder, prefix, writer, written, self.partition_by, indexed, size)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Put the staged rows into the table, with the position, in one commit. An empty batch is a commit too."""
        files = [item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)]
        paths = [path for item in staged_items(manifests) for path in item.paths]
        by_spark = bool(self._table.bound) or self._replaced_by_spark
        with self._table.landing(position):
            if self.replaces and not by_spark:
                self._replacement(position.last).land(position, files, onto)
            elif self.replaces or paths or (by_spark and not files and not self._table.takes_bare_entries()):
                self._insert(position, paths, onto)
            else:
                self._append(position, files, onto)
        self._beside.clean(paths)

    @property
    def commits_under_lock(self) -> bool:
        """An append of files and a compaction never meet; rows that are replaced may be in a file that it rewrites."""
        return bool(self.replaces)

    def has_staged(self, manifests: Sequence[Manifest]) -> bool:
        """Whether the staged files are still in the table's folder."""
        files = (item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile))
        return all(self._table.folder.has(file.path) for file in files)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the position refuses it. It walks
        through the table's folder, so it is for a batch that lost an attempt, not for every batch.
        """
        with sink_failures(self.name, f"removing leftovers of batch {token.batch_id}"):
            self._beside.discard(token)
            named = {item.path for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)}
            folder = self._table.folder
            strays = {path for path in folder.data_files(self._table.prefix(token)) if path not in named}
            committed = self._table.committed_files(token) if strays else None
            if committed is not None:
                for path in strays - committed:
                    folder.remove(path)

    def _fit(self, schema: pa.Schema) -> Fit | None:
        if self.replaces:
            check_replaceable(self._table, schema, kept=self.keep_coordinates)
        return super()._fit(schema)

    def _replacement(self, token: BatchToken) -> DeltaReplacement:
        return DeltaReplacement(
            self._table, self.replaces, lambda writer, schema: self._data_files(token, writer, schema)
        )

    def _append(self, position: Position, files: Sequence[StagedFile], onto: Position | None) -> None:
        """Name the files in the log. Small ones are joined first, once it is clear that the table stands at `onto`."""
        self._table.standing(onto)
        self._table.refuse_outdated(files)
        schema = self._table.written or pa.schema([])
        joined = JoinedFiles(
            self._table.folder,
            files,
            self.target_file_bytes,
            lambda file: file.partition_values,
            lambda: self._data_files(position.last, JOINER, schema),
            lambda stage, file, rows: stage.add(file.partition_values, rows),
        )
        self._table.append(position, joined.files(), onto)
        with suppress(OSError):  # what stays is named by no version, and goes with the next VACUUM
            joined.remove_sources()

    def _insert(self, position: Position, paths: Sequence[str], onto: Position | None) -> None:
        table = self._table.standing_table(onto)
        columns = columns_of(table, self._table.written)
        names = ", ".join(quoted(name) for name in columns.names)
        target = table_name(self._table.folder)
        if self.replaces:
            statement = replace_statement(target, columns, held_columns(table), self.replaces)
        else:
            statement = f"INSERT INTO {target} ({names}) SELECT {names} FROM staged"
        self._beside.run(self._sql, statement, position, paths, columns)
