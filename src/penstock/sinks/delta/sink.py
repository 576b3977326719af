"""Delta append, exactly once: files staged in tasks, named in the log by one commit that carries the token.

The commit's transaction id is pipeline/sink/query id with the batch id as its version, and its metadata holds
the whole token, so a lost checkpoint can start from the table. delta-rs refuses a commit when another writer
of the same transaction id got in between; whatever it raises, the table is read again before anything is
decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, BatchToken, Guarantee, Manifest, SlotAttempt
from penstock.sinks.delta.failures import is_passing, sink_failure, sink_failures
from penstock.sinks.delta.history import TableCommit, commit_metadata, commits_of, files_added
from penstock.sinks.delta.schema import check_schema, check_table, complete_protocol, identity_of, refuse_missing
from penstock.sinks.delta.stage import DeltaStage, StagedFile
from penstock.sinks.delta.stats import INDEXED_COLUMNS
from penstock.sinks.files.folder import TableFolder

COMMIT_TRIES = 5
CHECKPOINT_INTERVAL = 10
"""Commits from one checkpoint of the log to the next: Spark's figure. With delta-rs's 100 a commit of a small
table grew from 4 to 25 ms between two of them."""


class DeltaSink:
    """Implements `contracts.Sink` over one Delta table."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        partition_by: Sequence[str] | None = (),
        evolve: Literal["fail", "add_columns"] = "fail",
        keep_coordinates: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by or ())
        self.evolve = evolve
        self.keep_coordinates = keep_coordinates
        self._storage_options = dict(storage_options or {})
        self._folder = TableFolder(path, storage_options)
        self._indexed_columns = INDEXED_COLUMNS
        self._schema: pa.Schema | None = None
        self._checked = ""
        self._table: DeltaTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # an open table does not pickle, and tasks need none

    @property
    def target(self) -> str:
        """The table's path."""
        return self.path

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check it and, if allowed, add the columns it lacks."""
        self._schema = self._writable(schema)
        with sink_failures(self.name, "preparing the table"):
            table = self._existing() or self._create(self._schema)
            missing = check_table(self.name, table, self._schema, self.partition_by)
            if missing and self.evolve == "add_columns":
                table.alter.add_columns(missing)
                table.update_incremental()
                missing = check_table(self.name, table, self._schema, self.partition_by)
            if missing:
                raise refuse_missing(self.name, table, self._schema, missing)
            complete_protocol(table)
            self._checked = identity_of(table)
            settings = table.metadata().configuration
            self._indexed_columns = int(settings.get("delta.dataSkippingNumIndexedCols") or INDEXED_COLUMNS)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the table, if it is there, can take the rows, with the columns that may be added to it."""
        written = self._writable(schema)
        with sink_failures(self.name, "looking at the table"):
            table = self._existing()
            if table is None:
                return
            missing = check_table(self.name, table, written, self.partition_by)
            if missing and self.evolve != "add_columns":
                raise refuse_missing(self.name, table, written, missing)

    def last_commit(self) -> BatchToken | None:
        """The newest token in the table, whichever query committed it, past what a RESTORE took back.

        The log is the memory: commits that Delta's clean-up took out of it (after 30 days by default, where
        others wrote since) are not found.
        """
        with sink_failures(self.name, "reading the table's history"):
            table = self._open()
            if table is None:
                return None
            commits = commits_of(table, self.pipeline, self.name)
            return next((commit.token for commit in commits if commit.kept), None)

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is in the table. Raises where it has other offsets or was taken back."""
        with sink_failures(self.name, "reading the table's history"):
            table = self._open()
            if table is None:
                return False
            newest = self._newest(table, token)
            seen = table.transaction_version(self._app_id(token))
        if newest is None:
            return seen is not None and seen >= token.batch_id
        if not newest.kept:
            raise self._restored(newest, token)
        if newest.token.batch_id == token.batch_id and newest.token.ranges != token.ranges:
            raise TerminalError(
                "SINK_TOKEN_MISMATCH",
                f"sink {self.name}: batch {token.batch_id} is already committed with other offsets",
                context={"checkpoint": token.describe_ranges(), "table": newest.token.describe_ranges()},
                hint="run: penstock plan FILE",
            )
        return max(newest.token.batch_id, seen or 0) >= token.batch_id

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> DeltaStage:
        """In a task: begin the files of one attempt of a slot."""
        return DeltaStage(
            self.name,
            self._folder,
            self._prefix(token),
            writer,
            self._written(schema),
            self.partition_by,
            self._indexed_columns,
        )

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Name the staged files in the log, with the token, in one commit. An empty batch is a commit too."""
        files = [item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)]
        failure: Exception | None = None
        for _ in range(COMMIT_TRIES):
            if self.holds(token):
                return
            try:
                self._append(token, files)
                return
            except (OSError, DeltaError) as error:  # landed or not: only the table knows
                failure = error
                self._table = None
                if not isinstance(error, CommitFailedError) and not is_passing(error):
                    break
        if failure is not None and not self.holds(token):
            raise sink_failure(self.name, f"committing batch {token.batch_id}", failure) from failure

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove the files of other attempts, once the batch is committed.

        Before that another driver may still be about to commit them; afterwards the log refuses it. It walks
        through the table's folder, so it is for a batch that lost an attempt, not for every batch.
        """
        named = {item.path for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)}
        strays = [path for path in self._folder.data_files(self._prefix(token)) if path not in named]
        if not strays:
            return
        with sink_failures(self.name, f"removing strays of batch {token.batch_id}"):
            table = self._open()
            commit = self._newest(table, token) if table is not None else None
            if commit is None or commit.token != token or self._folder.local is None:
                return
            committed = files_added(self._folder.local, commit)
            if committed is not None:
                for path in set(strays) - committed:
                    self._folder.remove(path)

    def _written(self, schema: pa.Schema) -> pa.Schema:
        fields = [field for field in schema if self.keep_coordinates or field.name != COORDINATES]
        return pa.schema(fields)

    def _writable(self, schema: pa.Schema) -> pa.Schema:
        """The columns to write; refused where no Delta table at this path could hold them."""
        if self._folder.local is not None and set("#?%") & set(self.path):
            # delta-rs 1.6 finds no history under such a path, and with it no token.
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.name}: a table's path cannot have #, ? or % in it",
                context={"path": self.path},
            )
        written = self._written(schema)
        check_schema(self.name, written, self.partition_by)
        return written

    def _existing(self) -> DeltaTable | None:
        """The table that is there, if any; refused where other files are in its place."""
        table = None if self._folder.is_file() else self._open()
        found = self._folder.any_file() if table is None else None
        if found is not None:
            raise MissingError(
                "SINK_PATH_NOT_A_TABLE",
                f"sink {self.name}: the folder holds files and no Delta table",
                context={"path": self.path, "found": found},
                hint="give the sink an empty folder, or convert the files to a Delta table first",
            )
        return table

    def _app_id(self, token: BatchToken) -> str:
        return f"{self.pipeline}/{self.name}/{token.query_id}"

    def _prefix(self, token: BatchToken) -> str:
        # Tables are shared: the mark keeps writers with alike query ids from removing each other's files.
        mark = hashlib.sha256(self._app_id(token).encode()).hexdigest()[:12]
        return f"part-{token.label}-{mark}-"

    def _open(self) -> DeltaTable | None:
        """The table as it is now, or none. Kept open between batches: a refresh reads only what is new."""
        try:
            if self._table is None:
                self._table = DeltaTable(self.path, storage_options=self._storage_options or None)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
        return self._table

    def _create(self, schema: pa.Schema) -> DeltaTable:
        self._table = DeltaTable.create(
            self.path,
            schema=Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self.partition_by),
            configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
            storage_options=self._storage_options or None,
        )
        return self._table

    def _newest(self, table: DeltaTable, token: BatchToken) -> TableCommit | None:
        commits = commits_of(table, self.pipeline, self.name)
        return next((commit for commit in commits if commit.token.query_id == token.query_id), None)

    def _append(self, token: BatchToken, files: Sequence[StagedFile]) -> None:
        table = self._table
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.name}: the table is not there any more",
                context={"path": self.path},
                hint="a new start makes a new table; what was in the old one is not written again",
            )
        if self._schema is not None and identity_of(table) != self._checked:
            missing = check_table(self.name, table, self._schema, self.partition_by)
            if missing:
                raise refuse_missing(self.name, table, self._schema, missing)
            self._checked = identity_of(table)
        before = table.version()
        table.create_write_transaction(
            [file.to_action(self.partition_by) for file in files],
            mode="append",
            schema=table.schema(),
            partition_by=list(self.partition_by),
            commit_properties=CommitProperties(
                custom_metadata=commit_metadata(token, self.name),
                app_transactions=[Transaction(self._app_id(token), token.batch_id)],
            ),
        )
        table.update_incremental()
        self._folder.sync(f"_delta_log/{version:020}.json" for version in range(before + 1, table.version() + 1))

    def _restored(self, lost: TableCommit, token: BatchToken) -> TerminalError:
        return TerminalError(
            "SINK_TABLE_RESTORED",
            f"sink {self.name}: a RESTORE of the table took batches of this pipeline back",
            context={
                "checkpoint": f"batch {token.batch_id}: {token.describe_ranges()}",
                "taken back": f"up to batch {lost.token.batch_id}, committed as version {lost.version}",
            },
            hint=(
                "to write those batches again: a new checkpoint and run --resume-from-table\n"
                f"to undo the restore: RESTORE TABLE ... TO VERSION AS OF {lost.version}"
            ),
        )
