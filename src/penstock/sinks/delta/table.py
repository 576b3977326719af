"""One Delta table as a sink sees it: made, checked, and read for the tokens that its log holds.

The transaction id of a commit is pipeline/sink/query id with the batch id as its version, and the commit's metadata
holds the whole token, so a lost checkpoint can start from the table. delta-rs and Spark both refuse a commit when
another writer of the same transaction id got in between; whatever they raise, the table is read again before
anything is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.contracts import SqlEngine
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model import BatchToken
from penstock.sinks.delta.alter import add_by_delta_rs, alter_by_spark
from penstock.sinks.delta.failures import EngineError, is_conflict, is_passing, sink_failure, sink_failures
from penstock.sinks.delta.history import TableCommit, commit_metadata, commits_of, taken_back
from penstock.sinks.delta.log_entry import append_entry
from penstock.sinks.delta.names import table_name
from penstock.sinks.delta.schema import (
    check_partitions,
    check_schema,
    complete_protocol,
    delta_type,
    held_columns,
    identity_of,
    refuse_unsupported,
    unsupported,
)
from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.delta.tail import CHECKPOINT_INTERVAL, LogTail, app_id_of
from penstock.sinks.evolution import Evolve, Fit, Fitting
from penstock.sinks.failures import other_offsets
from penstock.sinks.files import TableFolder, staged_prefix
from penstock.storage import Storage

COMMIT_TRIES = 5
_LOOKS = 5
_LOOK_SECONDS = 0.1


class TokenTable:
    """The table of one sink. Kept open between batches; in a task it is only a folder and a schema."""

    def __init__(
        self,
        pipeline: str,
        sink: str,
        path: str,
        partition_by: Sequence[str],
        evolve: Evolve,
        storage: Storage,
    ) -> None:
        self.pipeline = pipeline
        self.sink = sink
        self.path = path
        self.partition_by = tuple(partition_by)
        self.folder = TableFolder(path, storage)
        self.settings: Mapping[str, str] = {}
        self._fitting = Fitting(sink, evolve, describe=delta_type)
        self._storage = storage
        self.written: pa.Schema | None = None
        """What is written of the rows that the table was prepared for, in the table's types."""
        self.bound: tuple[str, ...] = ()
        """What the table asks of its writers that only Spark can give."""
        self._held: pa.Schema | None = None
        self._through_spark = False
        self._checked = ""
        self._table: DeltaTable | None = None
        self._tail: LogTail | None = None

    def __getstate__(self) -> dict[str, Any]:
        # An open table does not pickle, and tasks need none.
        return {**self.__dict__, "_table": None, "_tail": None}

    def prepare(self, schema: pa.Schema, *, sql: SqlEngine | None, through_spark: bool) -> None:
        """Create the table, or check it and give it what `evolve` allows. Again in a run: for other rows.

        `sql` makes the changes that delta-rs cannot; `through_spark` is whether rows may be committed by Spark.
        """
        self._through_spark = through_spark
        with sink_failures(self.sink, "preparing the table"):
            table, fit = self._ready(schema, sql)
            self._keep(table, fit)
            self.settings = table.metadata().configuration

    def check(self, schema: pa.Schema) -> Fit | None:
        """How the rows go into the table as it is now; none where there is no table. Raises where they cannot."""
        with sink_failures(self.sink, "looking at the table"):
            table = self._existing()
            if table is None:
                self._writable(schema, None)
                return None
            self.settings = table.metadata().configuration
            return self._compared(table, schema)

    def staged(self, schema: pa.Schema) -> pa.Schema:
        """In a task: what of these rows is written, in the types that the table had when it was last looked at."""
        return schema if self._held is None else self._fitting.staged(schema, self._held)

    def bound_by(self) -> list[str]:
        """What the table, if it is there, asks of its writers that only Spark can give."""
        table = self.look()
        return [] if table is None else unsupported(table)

    def look(self) -> DeltaTable | None:
        """The table as it is now, if it is there."""
        with sink_failures(self.sink, "looking at the table"):
            return None if self.folder.is_file() else self._open()

    def last_commit(self) -> BatchToken | None:
        """The newest token in the table, whichever query committed it, past what a RESTORE took back.

        The log is the memory: commits that Delta's clean-up took out of it (after 30 days by default, where
        others wrote since) are not found.
        """
        with sink_failures(self.sink, "reading the table's history"):
            table = self._open()
            if table is None:
                return None
            commits = commits_of(table, self.pipeline, self.sink)
            return next((commit.token for commit in commits if commit.kept), None)

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is in the table. Raises where it has other offsets or was taken back."""
        with sink_failures(self.sink, "reading the table's history"):
            tail = self._following(token)
            if tail is not None:
                newest, seen = tail.newest, tail.seen
            else:
                table = self._open()
                if table is None:
                    return False
                newest = self._newest(table, token)
                seen = table.transaction_version(self.app_id(token))
        if newest is None:
            return seen is not None and seen >= token.batch_id
        if not newest.kept:
            raise taken_back(self.sink, newest, token)
        if newest.token.batch_id == token.batch_id and newest.token.ranges != token.ranges:
            raise other_offsets(self.sink, token, newest.token)
        return max(newest.token.batch_id, seen or 0) >= token.batch_id

    def commit_once(self, token: BatchToken, write: Callable[[], None]) -> None:
        """Call `write`, which commits with the token, until the table holds the batch."""
        failure: Exception | None = None
        for _ in range(COMMIT_TRIES):
            if self.holds(token):
                return
            try:
                write()
                return
            except (OSError, DeltaError, EngineError) as error:  # landed or not: only the table knows
                failure = error
                self._table = self._tail = None
                if not is_conflict(error) and not is_passing(error):
                    break
        if failure is not None and not self.holds(token):
            raise sink_failure(self.sink, f"committing batch {token.batch_id}", failure) from failure

    def append(self, token: BatchToken, files: Sequence[StagedFile]) -> None:
        """Name files in the log, with the token, in one commit. No files are a commit too.

        A blind append does not disturb a MERGE or OPTIMIZE running beside.
        """
        tail = self._tail_of(token)
        entry = append_entry(token, self.sink, tail.app_id, files, self.partition_by)
        if not tail.append(entry, token):
            raise CommitFailedError("another writer's commit came in between")
        tail.checkpoint_when_due(lambda: DeltaTable(self.path, storage_options=self._options))

    def properties(self, token: BatchToken, more: Mapping[str, object] | None = None) -> CommitProperties:
        """What a commit by delta-rs carries."""
        return CommitProperties(
            custom_metadata={**commit_metadata(token, self.sink), **(more or {})},
            app_transactions=[Transaction(self.app_id(token), token.batch_id)],
        )

    def settle(self, before: int) -> None:
        """Look at the table past version `before`, and make its log durable."""
        table = self.current()
        table.update_incremental()
        self.folder.sync(f"_delta_log/{version:020}.json" for version in range(before + 1, table.version() + 1))

    def current(self) -> DeltaTable:
        """The table as it was last looked at; checked again where it changed since."""
        table = self._table
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.sink}: the table is not there any more",
                context={"path": self.path},
                hint="a new start makes a new table; what was in the old one is not written again",
            )
        if self.written is not None and identity_of(table) != self._checked:
            self._keep(table, self._fit(table, self.written, replace(self._fitting, evolve="fail")))
        return table

    def changed(self) -> TransientError:
        """The error for a table that is not any more the one for which rows were staged."""
        return TransientError(
            "SINK_TABLE_CHANGED",
            f"sink {self.sink}: the table was changed since the rows were staged",
            hint="the batch is staged again, for the table as it is now",
        )

    def newest_commit(self, token: BatchToken) -> TableCommit | None:
        """The newest commit of the token's query."""
        table = self._open()
        return self._newest(table, token) if table is not None else None

    def app_id(self, token: BatchToken) -> str:
        """The transaction id of a batch, less its version."""
        return app_id_of(self.pipeline, self.sink, token.query_id)

    def prefix(self, token: BatchToken) -> str:
        """How the names of a batch's files begin."""
        return staged_prefix("part", self.pipeline, self.sink, token)

    def _writable(self, schema: pa.Schema, table: DeltaTable | None) -> pa.Schema:
        """The columns that matter to the table; refused where no Delta table at this path could hold them."""
        if self.folder.local is not None and set("#?%") & set(self.path):
            # delta-rs 1.6 finds no history under such a path, and with it no token.
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.sink}: a table's path cannot have #, ? or % in it",
                context={"path": self.path},
            )
        if table is not None and self._fitting.evolve == "ignore":
            known = {each.name.lower() for each in table.schema().fields}
            schema = pa.schema([each for each in schema if each.name.lower() in known])
        check_schema(self.sink, schema, self.partition_by)
        return schema

    def _keep(self, table: DeltaTable, fit: Fit) -> None:
        """Note what the next batch goes by, until the table changes."""
        self.written, self._held, self.bound = fit.taken, held_columns(table), tuple(unsupported(table))
        self._checked = identity_of(table)

    def _compared(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting | None = None) -> Fit:
        self._writable(schema, table)
        check_partitions(self.sink, table, self.partition_by)
        return (fitting or self._fitting).fit(schema, held_columns(table))

    def _fit(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting | None = None) -> Fit:
        """How the rows go into the table; refused where it asks for Spark and is written without."""
        bound = unsupported(table)
        if bound and not self._through_spark:
            hint = "start again: the table is then written through Spark; or drop the feature from the table"
            raise refuse_unsupported(self.sink, bound, hint)
        return self._compared(table, schema, fitting)

    def _ready(self, schema: pa.Schema, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """The table as these rows need it. Pipelines that share one, such as a quarantine, may make it at once."""
        for left in reversed(range(COMMIT_TRIES)):
            try:
                table = self._existing() or self._create(self._writable(schema, None))
                fit = self._fit(table, schema)
                if fit.changes_target:
                    table, fit = self._change(table, schema, fit, sql)
                if not unsupported(table):
                    complete_protocol(table)
                return table, fit
            except CommitFailedError as error:
                if not left or not is_conflict(error):
                    raise
        raise AssertionError("unreachable")

    def _change(self, table: DeltaTable, schema: pa.Schema, fit: Fit, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """Give the table what it lacks. Another run that does the same at the same time may be first."""
        failure: Exception | None = None
        try:
            if fit.widened or unsupported(table):
                alter_by_spark(self.sink, sql, table_name(self.folder), fit)
            else:
                add_by_delta_rs(table, fit)
        except (PenstockError, DeltaError) as error:
            failure = error
        now = self._open() or table
        fit = self._fit(now, schema)
        if fit.changes_target:
            raise failure or self.changed()
        return now, fit

    def _existing(self) -> DeltaTable | None:
        """The table that is there, if any; refused where other files are in its place."""
        found = None
        # Files without a table may be one that is being made at this moment: so more than one look.
        for _ in range(_LOOKS):
            table = None if self.folder.is_file() else self._open()
            if table is not None or (found := self.folder.any_file()) is None:
                return table
            time.sleep(_LOOK_SECONDS)
        raise MissingError(
            "SINK_PATH_NOT_A_TABLE",
            f"sink {self.sink}: the folder holds files and no Delta table",
            context={"path": self.path, "found": found},
            hint="give the sink an empty folder, or convert the files to a Delta table first",
        )

    def _open(self) -> DeltaTable | None:
        """The table as it is now, or none. A refresh of an open one reads only what is new."""
        try:
            if self._table is None:
                self._table = DeltaTable(self.path, storage_options=self._options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
        return self._table

    def _following(self, token: BatchToken) -> LogTail | None:
        """The end of the log as it is now, where one is followed for the token's query. One that is lost takes with it
        what is known of the table."""
        tail = self._tail
        if tail is None or tail.query_id != token.query_id:
            return None
        if not tail.follow():
            self._table = self._tail = None
        return self._tail

    def _tail_of(self, token: BatchToken) -> LogTail:
        """The end of the log as it was last looked at; begun behind the table where none is followed for the query."""
        if self._tail is not None and self._tail.query_id == token.query_id:
            return self._tail
        table = self.current()
        seen, newest = table.transaction_version(self.app_id(token)), self._newest(table, token)
        where = (self.folder, self.pipeline, self.sink, token.query_id)
        self._tail = LogTail(*where, table.version(), newest, seen, table.get_add_actions().num_rows)
        return self._tail

    def _create(self, schema: pa.Schema) -> DeltaTable:
        self._table = DeltaTable.create(
            self.path,
            schema=Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self.partition_by),
            configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
            storage_options=self._options,
        )
        return self._table

    @property
    def _options(self) -> dict[str, str] | None:
        return self._storage.for_delta_at(self.path)

    def _newest(self, table: DeltaTable, token: BatchToken) -> TableCommit | None:
        commits = commits_of(table, self.pipeline, self.sink)
        return next((commit for commit in commits if commit.token.query_id == token.query_id), None)
