"""Iceberg, exactly once: rows staged in tasks, made visible by one snapshot that carries the new position.

An append is files named by a pyiceberg commit. A merge is written by Spark to a branch of its own, and main is then
moved there. Either way main moves only from the snapshot whose history was read for the position: when another writer
commits in between, the table is read again before anything is decided.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from penstock.contracts import BaseSink, SqlEngine, Stage
from penstock.errors import TerminalError
from penstock.model import (
    COORDINATES,
    DELETES,
    BatchToken,
    Guarantee,
    Manifest,
    MergeRules,
    OffsetRange,
    Position,
    SlotAttempt,
    Verdict,
    decide,
)
from penstock.sinks.commit import position_moved
from penstock.sinks.evolution import Evolve, Fit, written_columns
from penstock.sinks.files import TableFolder, staged_prefix
from penstock.sinks.files.joining import JOINER, JoinedFiles
from penstock.sinks.files.stage import STAGED, StagedFile, items_of
from penstock.sinks.files.writer import TARGET_FILE_BYTES
from penstock.sinks.iceberg.definition import (
    TableDefinition,
    held_columns,
    identity_of,
    parse_identifier,
    parse_partitions,
)
from penstock.sinks.iceberg.failures import is_conflict, sink_failures
from penstock.sinks.iceberg.history import (
    files_added,
    history_of,
    mark_of,
    other_writers,
    snapshots_of,
    summary_of,
)
from penstock.sinks.iceberg.maintenance import IcebergMaintenance
from penstock.sinks.iceberg.partitions import Layout, check_staged
from penstock.sinks.iceberg.stage import AppendStage, IcebergReplacement, StagedIcebergFile
from penstock.sinks.iceberg.staged_rows import IcebergRowsStage, StagedIcebergRows
from penstock.sinks.iceberg.table import CatalogTable, IcebergCatalog
from penstock.sinks.merging import refuse_without_position
from penstock.sinks.replacing import refuse_without_coordinates
from penstock.storage import Storage

LAND_TRIES = 100
"""How many times a commit is retried because other pipelines, sinks or a compaction commit to the table first."""


class IcebergSink(BaseSink):
    """Implements `contracts.Sink` over one Iceberg table."""

    guarantee = Guarantee.EXACTLY_ONCE
    replaces: tuple[OffsetRange, ...] = ()

    def __init__(
        self,
        pipeline: str,
        name: str,
        table: str,
        warehouse: str,
        *,
        catalog: IcebergCatalog,
        storage: Storage = Storage(),
        rules: MergeRules | None = None,
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.table = table
        self.warehouse = warehouse
        self.rules = rules
        self._definition = TableDefinition(
            name, warehouse, parse_partitions(name, partition_by), rules, evolve, keep_coordinates
        )
        identifier = parse_identifier(name, table)
        self._mark = mark_of(pipeline, name)
        self._storage = storage
        self._sql: SqlEngine | None = None
        self._on_driver: CatalogTable | None = CatalogTable(catalog, warehouse, identifier)
        self._schema: pa.Schema | None = None
        self._layout: Layout | None = None
        self._checked = ""
        self.target_file_bytes = target_file_bytes
        self.cluster_by = tuple(cluster_by)

    def replacing(self, ranges: Sequence[OffsetRange]) -> IcebergSink:
        """The same sink, which appends: its commits take the rows of these ranges out of the table as well."""
        made = self._copy()
        made.replaces = tuple(ranges)
        return made

    def by_position(self) -> IcebergSink:
        """The same sink for merges: an existing row stays where it came from a later position."""
        assert self.rules is not None
        made = self._copy()
        made.rules = replace(self.rules, by_position=True)
        return made

    def would_replace(self) -> int | None:
        """Read only: how many rows of the table are in the ranges."""
        with sink_failures(self.name, "counting rows to replace"):
            table = self._catalog_table.load()
            return IcebergReplacement(self.replaces).count(table) if table is not None else 0

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only write files: clients do not pickle, and the catalog's secrets stay on the driver.
        return {**self.__dict__, "_on_driver": None, "_sql": None}

    @property
    def target(self) -> str:
        """The table, and the warehouse it is in."""
        return f"{self.table} in {self.warehouse}"

    @property
    def needs_sql(self) -> bool:
        """Merges are made by Spark."""
        return self.rules is not None

    def use(self, sql: SqlEngine) -> None:
        """On the driver: the engine to commit through."""
        self._sql = sql

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and give it the columns and types that `evolve` allows."""
        with sink_failures(self.name, "preparing the table", at_start=self._schema is None):
            catalog_table = self._catalog_table
            self._check_replaceable(schema)
            table, fit = self._definition.ready(catalog_table, schema)
            catalog_table.drop(self._branches(table))
        if self.rules is not None:
            refuse_without_position(self.name, fit.taken, self.rules, kept=self._definition.keep_coordinates)
        self._schema, self._checked = fit.taken, identity_of(table)
        self._layout = Layout.of(table)

    def check(self, schema: pa.Schema) -> None:
        """Check whether the table, if it exists, can take the rows, with the changes that `evolve` allows."""
        self._fit(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Read only: what `prepare` would change in the table for these rows, and which columns it would leave out."""
        fit = self._fit(schema)
        return ["create table"] if fit is None else fit.changes()

    def position(self) -> Position | None:
        """What the table holds now: after a roll-back, the newest position that was not taken out."""
        with sink_failures(self.name, "reading the table's snapshots"):
            table = self._catalog_table.load()
            return self._position(table) if table is not None else None

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records of these ranges that the table has rows of; none where its rows have no coordinates."""
        with sink_failures(self.name, "looking for records"):
            table = self._catalog_table.load()
            if table is None:
                return set()
            named = COORDINATES in (field.name for field in table.schema().fields)
            return IcebergReplacement(ranges).records(table) if named and self._definition.keep_coordinates else None

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have written to the table, as far back as its snapshots go."""
        with sink_failures(self.name, "reading the table's snapshots"):
            table = self._catalog_table.load()
            return other_writers(table.metadata, self.pipeline, self.name) if table is not None else []

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin the files of one attempt of a slot."""
        layout = self._prepared()
        if self.rules is None:
            staged = self._definition.staged(schema, layout)
            return AppendStage(
                self.name, layout, self._prefix(token), writer, staged, self.target_file_bytes, self._storage
            )
        rows = written_columns(schema, keep_coordinates=False)
        extra = [f for f in schema if f.name in (COORDINATES, DELETES)]
        return IcebergRowsStage(
            self.name,
            self._staging(layout),
            self._prefix(token),
            writer,
            pa.schema([*self._definition.staged(rows, layout), *extra]),
            self.rules,
            self._definition.partition_by,
        )

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Make the staged rows visible and the position current, in one snapshot. An empty batch is a snapshot too."""
        token = position.last
        rows = items_of(manifests, StagedIcebergRows)
        with sink_failures(self.name, f"committing batch {token.batch_id}"):
            if self._layout is None:  # a position is moved outside a run: there are no rows
                self._layout = Layout.of(self._existing())
            replacement, joined = self._replacement(token), self._joined(token, items_of(manifests, StagedIcebergFile))
            for tries_left in reversed(range(LAND_TRIES)):
                table = self._existing()
                if self._position(table) != onto:
                    raise position_moved(self.name)
                self._check_unmoved(table)
                try:
                    self._commit_snapshot(position, joined.files(), rows, table, replacement)
                    break
                except Exception as error:
                    if not is_conflict(error) or not tries_left:
                        raise
        self._remove(file.path for file in rows)
        with suppress(OSError):  # what stays is named by no snapshot, and an orphan to maintenance
            joined.remove_originals()

    @property
    def commits_under_lock(self) -> bool:
        """An append that loses to a compaction only names its files again; anything else has to be redone."""
        return self.rules is not None or bool(self.replaces)

    def maintenance(self) -> IcebergMaintenance:
        """The maintenance of the table."""
        return IcebergMaintenance(
            self.name, self._catalog_table, self.target_file_bytes, self.cluster_by, self._storage
        )

    def has_staged(self, manifests: Sequence[Manifest]) -> bool:
        """Whether the staged files are still in the table's folder."""
        files, rows = items_of(manifests, StagedIcebergFile), items_of(manifests, StagedIcebergRows)
        with sink_failures(self.name, "looking for staged files"):
            table = self._catalog_table.load()
            if table is None:
                return not files and not rows
            layout = Layout.of(table)
            data, staging = TableFolder(layout.data, self._storage), self._staging(layout)
            return all(data.has(file.path) for file in files) and all(staging.has(file.path) for file in rows)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the position refuses it. It walks
        through the folder, so it is for a batch that lost an attempt, not for every batch.
        """
        layout = self._prepared()
        folder = self._staging(layout) if self.rules is not None else TableFolder(layout.data, self._storage)
        named = {file.path for file in items_of(manifests, StagedFile)}
        leftovers = set(folder.data_files(self._prefix(token))) - named
        if not leftovers:
            return
        with sink_failures(self.name, f"removing leftovers of batch {token.batch_id}"):
            table = self._catalog_table.load()
            if table is None or decide(self._position(table), token) is not Verdict.COMMITTED:
                return
            commits = snapshots_of(table.metadata, self.pipeline, self.name, token)
            if not commits:
                return
            if self.rules is None:
                prefix = f"{layout.data}/"
                for snapshot in commits:
                    leftovers -= {path.removeprefix(prefix) for path in files_added(snapshot, table.io)}
            for path in leftovers:
                folder.remove(path)

    def _commit_snapshot(
        self,
        position: Position,
        files: Sequence[StagedIcebergFile],
        rows: Sequence[StagedIcebergRows],
        base: Table,
        replacement: IcebergReplacement | None,
    ) -> None:
        """One try: a snapshot on top of the one that `base` has as main's, or an error."""
        layout, target, summary = self._prepared(), self._catalog_table, summary_of(self.pipeline, self.name, position)
        if self.rules is None or not rows:
            touched = replacement.touched(base) if replacement is not None else []
            added = [*files, *(file for one in touched for file in one.rest)]
            removed = [one.file.file for one in touched]
            target.append(base, [file.to_data_file(layout) for file in added], summary, self._mark, removed)
            return
        branch = f"{self._mark}_{secrets.token_hex(4)}"
        folder = self._staging(layout)
        try:
            target.merge_on_branch(
                self._engine(),
                branch,
                base,
                {f"{folder.uri}/{item.path}": item.bounds for item in rows},
                self._schema.names if self._schema is not None else [],
                self.rules,
                summary,
            )
            target.publish(base, branch, self._mark)
        except Exception as error:
            overtaken = self._is_overtaken(base, branch)
            with suppress(Exception):  # the next start removes it then
                target.drop([branch])
            if overtaken:
                raise CommitFailedException(
                    "main has moved, or another start of this sink removed the branch"
                ) from error
            raise

    def _is_overtaken(self, base: Table, branch: str) -> bool:
        """Whether another writer is why a commit through a branch failed. Spark has no exception of its own for it."""
        with suppress(Exception):
            now = self._catalog_table.load()
            if now is not None:
                moved = now.metadata.current_snapshot_id != base.metadata.current_snapshot_id
                return moved or branch not in now.metadata.refs
        return False

    def _position(self, table: Table) -> Position | None:
        return history_of(table.metadata, self.pipeline, self.name).position

    def _replacement(self, token: BatchToken) -> IcebergReplacement | None:
        """What takes the rows of the ranges out of a table that pyiceberg commits to."""
        layout, prefix = self._prepared(), self._prefix(token)
        if not self.replaces or self.rules is not None:
            return None
        held, storage = held_columns(layout.schema), self._storage
        return IcebergReplacement(
            self.replaces,
            lambda writer: AppendStage(self.name, layout, prefix, writer, held, storage=storage),
        )

    def _joined(self, token: BatchToken, files: Sequence[StagedIcebergFile]) -> JoinedFiles[StagedIcebergFile]:
        """What the slots staged for an append, one file a partition where it is little."""
        layout, schema = self._prepared(), self._schema or pa.schema([])
        return JoinedFiles(
            TableFolder(layout.data, self._storage),
            files,
            self.target_file_bytes,
            lambda file: file.values,
            lambda: AppendStage(
                self.name, layout, self._prefix(token), JOINER, schema, self.target_file_bytes, self._storage
            ),
        )

    def _check_replaceable(self, schema: pa.Schema) -> None:
        if self.replaces:
            refuse_without_coordinates(self.name, schema.names, kept=self._definition.keep_coordinates)
            if (table := self._catalog_table.load()) is not None:
                refuse_without_coordinates(self.name, [f.name for f in table.schema().fields], kept=True)

    def _check_unmoved(self, table: Table) -> None:
        """Refuse a table that changed since the start so that what is staged for it does not fit any more."""
        layout, schema = self._prepared(), self._schema
        if schema is None or identity_of(table) == self._checked:
            return
        self._definition.fit(table, schema, "fail")
        if self.rules is None:
            check_staged(self.name, table, schema, layout)
        self._checked = identity_of(table)

    def _fit(self, schema: pa.Schema) -> Fit | None:
        with sink_failures(self.name, "looking at the table", at_start=True):
            self._check_replaceable(schema)
            return self._definition.check(self._catalog_table, schema)

    def _branches(self, table: Table) -> list[str]:
        """Branches that an earlier run of this sink did not remove."""
        return [name for name in table.metadata.refs if name.startswith(f"{self._mark}_")]

    def _copy(self) -> IcebergSink:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)  # with all that stays out of a pickle
        return made

    @property
    def _catalog_table(self) -> CatalogTable:
        assert self._on_driver is not None
        return self._on_driver

    def _existing(self) -> Table:
        table = self._catalog_table.load()
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.name}: the table no longer exists",
                context={"table": self.table, "warehouse": self.warehouse},
                hint="a new start makes a new table; the rows of the old one are not written again",
            )
        return table

    def _engine(self) -> SqlEngine:
        assert self._sql is not None
        return self._sql

    def _prepared(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def _prefix(self, token: BatchToken) -> str:
        return staged_prefix("part", self.pipeline, self.name, token)

    def _staging(self, layout: Layout) -> TableFolder:
        return TableFolder(f"{layout.location}/{STAGED}", self._storage)

    def _remove(self, paths: Iterable[str]) -> None:
        folder = self._staging(self._prepared())
        for path in paths:
            with suppress(OSError):  # a file that stays is invisible, and an orphan to maintenance
                folder.remove(path)
