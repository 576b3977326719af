"""Delta append, exactly once: files staged in tasks, named in the log by one commit that carries the token.

A table that asks more of its writers than delta-rs can give (row tracking, column mapping, constraints, ...) is
written by Spark instead, from rows staged beside it, with the same token and the same transaction id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.contracts import SqlEngine, Stage
from penstock.model import COMPUTED, COORDINATES, BatchToken, Guarantee, Manifest, SlotAttempt
from penstock.sinks.delta.beside import BesideFolder
from penstock.sinks.delta.beside_stage import BesideStage, staged_items
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.history import files_added
from penstock.sinks.delta.names import quoted, table_name
from penstock.sinks.delta.schema import columns_of
from penstock.sinks.delta.stage import DeltaStage, StagedFile
from penstock.sinks.delta.stats import INDEXED_COLUMNS
from penstock.sinks.delta.table import TokenTable
from penstock.sinks.evolution import Evolve


class DeltaSink:
    """Implements `contracts.Sink` and `contracts.SqlSink` over one Delta table."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        partition_by: Sequence[str] | None = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by or ())
        self.evolve = evolve
        self.keep_coordinates = keep_coordinates
        self._table = TokenTable(pipeline, name, path, self.partition_by, evolve, storage_options)
        self._beside = BesideFolder(self._table, storage_options)
        self._sql: SqlEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sql": None}

    @property
    def target(self) -> str:
        """The table's path."""
        return self.path

    @property
    def needs_sql(self) -> bool:
        """Whether only Spark can write the table as it is now, or may have to widen its types."""
        return self.evolve == "widen" or bool(self._table.bound_by())

    @property
    def note(self) -> str | None:
        """Why the table is written through Spark, for people; none where it is not."""
        bound = self._table.bound_by()
        return f"written through Spark, for the table has {', '.join(bound)}" if bound else None

    def use(self, sql: SqlEngine) -> None:
        """Take the engine to write through, should the table need it."""
        self._sql = sql

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        self._table.prepare(self._written(schema), sql=self._sql, through_spark=self._sql is not None)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the table, if it is there, can take the rows, with what `evolve` may change in it."""
        self._table.check(self._written(schema))

    def changes(self, schema: pa.Schema) -> list[str]:
        """Only look: what `prepare` would change in the table for these rows, and what it would leave out of them."""
        fit = self._table.check(self._written(schema))
        return ["create table"] if fit is None else fit.told()

    def last_commit(self) -> BatchToken | None:
        """The newest token in the table, whichever query committed it, past what a RESTORE took back."""
        return self._table.last_commit()

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is in the table. Raises where it has other offsets or was taken back."""
        return self._table.holds(token)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin the files of one attempt of a slot."""
        written = self._table.staged(self._written(schema))
        if self._table.bound:
            files = self._beside.files(token, writer, written)
            return BesideStage(self.name, files, writer, written, self.partition_by)
        indexed = int(self._table.settings.get("delta.dataSkippingNumIndexedCols") or INDEXED_COLUMNS)
        folder, prefix = self._table.folder, self._table.prefix(token)
        return DeltaStage(self.name, folder, prefix, writer, written, self.partition_by, indexed)

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Put the staged rows into the table, with the token, in one commit. An empty batch is a commit too."""
        files = [item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)]
        paths = [path for item in staged_items(manifests) for path in item.paths]
        if paths or (self._table.bound and not files):
            self._table.commit_once(token, lambda: self._insert(token, paths))
            self._beside.clean(paths)
        else:
            self._table.commit_once(token, lambda: self._append(token, files))

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the log refuses it. It walks
        through the table's folder, so it is for a batch that lost an attempt, not for every batch.
        """
        with sink_failures(self.name, f"removing strays of batch {token.batch_id}"):
            self._beside.discard(token)
            named = {item.path for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)}
            folder = self._table.folder
            strays = {path for path in folder.data_files(self._table.prefix(token)) if path not in named}
            commit = self._table.newest_commit(token) if strays else None
            if commit is None or commit.token != token or folder.local is None:
                return
            committed = files_added(folder.local, commit)
            if committed is not None:
                for path in strays - committed:
                    folder.remove(path)

    def _written(self, schema: pa.Schema) -> pa.Schema:
        left_out = () if self.keep_coordinates else (COORDINATES,)
        return pa.schema([f for f in schema if f.name not in left_out and not f.name.startswith(COMPUTED)])

    def _append(self, token: BatchToken, files: Sequence[StagedFile]) -> None:
        written = self._table.written
        self._table.current()
        if self._table.bound or self._table.written != written:
            raise self._table.changed()
        self._table.append(token, [file.to_action(self.partition_by) for file in files])

    def _insert(self, token: BatchToken, paths: Sequence[str]) -> None:
        columns = columns_of(self._table.current(), self._table.written)
        names = ", ".join(quoted(name) for name in columns.names)
        statement = f"INSERT INTO {table_name(self._table.folder)} ({names}) SELECT {names} FROM staged"
        self._beside.run(self._sql, statement, token, paths, columns)
