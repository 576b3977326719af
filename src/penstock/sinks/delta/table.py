"""One Delta table as a sink sees it: prepared, checked, and read for the tokens that its log holds.

The transaction id of a commit is pipeline/sink/query id with the batch id as its version, and the commit's metadata
holds the whole token, so a lost checkpoint can start from the table. delta-rs and Spark both refuse a commit when
another writer of the same transaction id got in between; whatever they raise, the table is read again before
anything is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.delta.failures import EngineError, is_conflict, is_passing, sink_failure, sink_failures
from penstock.sinks.delta.fitted import FittedTable
from penstock.sinks.delta.history import TableCommit, commit_metadata, commits_of, taken_back
from penstock.sinks.delta.log_entry import append_entry
from penstock.sinks.delta.schema import held_columns, identity_of, unsupported
from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.delta.tail import LogTail, app_id_of
from penstock.sinks.evolution import Evolve, Fit
from penstock.sinks.failures import other_offsets
from penstock.sinks.files import TableFolder, staged_prefix
from penstock.storage import Storage

COMMIT_TRIES = 5


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
        self.settings: Mapping[str, str] = {}
        self.written: pa.Schema | None = None
        """What is written of the rows that the table was prepared for, in the table's types."""
        self.bound: tuple[str, ...] = ()
        """What the table asks of its writers that only Spark can give."""
        self._fitted = FittedTable(sink, path, partition_by, evolve, storage)
        self._held: pa.Schema | None = None
        self._checked = ""
        self._tail: LogTail | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need no end of the log.
        return {**self.__dict__, "_tail": None}

    @property
    def folder(self) -> TableFolder:
        """Where the files of the table are."""
        return self._fitted.folder

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that its files are laid out by."""
        return self._fitted.partition_by

    def prepare(self, schema: pa.Schema, *, sql: SqlEngine | None, through_spark: bool) -> None:
        """Create the table, or check it and give it what `evolve` allows. Again in a run: for other rows.

        `sql` makes the changes that delta-rs cannot; `through_spark` is whether rows may be committed by Spark.
        """
        self._fitted.through_spark = through_spark
        with sink_failures(self.sink, "preparing the table"):
            table, fit = self._fitted.ready(schema, sql)
            self._keep(table, fit)
            self.settings = table.metadata().configuration

    def check(self, schema: pa.Schema) -> Fit | None:
        """How the rows go into the table as it is now; none where there is no table. Raises where they cannot."""
        with sink_failures(self.sink, "looking at the table"):
            table = self._fitted.existing()
            if table is None:
                self._fitted.writable(schema, None)
                return None
            self.settings = table.metadata().configuration
            return self._fitted.compared(table, schema)

    def staged(self, schema: pa.Schema) -> pa.Schema:
        """In a task: what of these rows is written, in the types that the table had when it was last looked at."""
        return schema if self._held is None else self._fitted.fitting.staged(schema, self._held)

    def bound_by(self) -> list[str]:
        """What the table, if it is there, asks of its writers that only Spark can give."""
        table = self.look()
        return [] if table is None else unsupported(table)

    def look(self) -> DeltaTable | None:
        """The table as it is now, if it is there."""
        with sink_failures(self.sink, "looking at the table"):
            return None if self.folder.is_file() else self._fitted.now()

    def last_commit(self) -> BatchToken | None:
        """The newest token in the table, whichever query committed it, past what a RESTORE took back.

        The log is the memory: commits that Delta's clean-up took out of it (after 30 days by default, where
        others wrote since) are not found.
        """
        with sink_failures(self.sink, "reading the table's history"):
            table = self._fitted.now()
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
                table = self._fitted.now()
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
                self._fitted.seen = self._tail = None
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
        tail.checkpoint_when_due(self._fitted.opened)

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
        table = self._fitted.seen
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.sink}: the table is not there any more",
                context={"path": self.path},
                hint="a new start makes a new table; what was in the old one is not written again",
            )
        if self.written is not None and identity_of(table) != self._checked:
            self._keep(table, self._fitted.fit(table, self.written, replace(self._fitted.fitting, evolve="fail")))
        return table

    def newest_commit(self, token: BatchToken) -> TableCommit | None:
        """The newest commit of the token's query."""
        table = self._fitted.now()
        return self._newest(table, token) if table is not None else None

    def app_id(self, token: BatchToken) -> str:
        """The transaction id of a batch, less its version."""
        return app_id_of(self.pipeline, self.sink, token.query_id)

    def prefix(self, token: BatchToken) -> str:
        """How the names of a batch's files begin."""
        return staged_prefix("part", self.pipeline, self.sink, token)

    def _keep(self, table: DeltaTable, fit: Fit) -> None:
        """Note what the next batch goes by, until the table changes."""
        self.written, self._held, self.bound = fit.taken, held_columns(table), tuple(unsupported(table))
        self._checked = identity_of(table)

    def _following(self, token: BatchToken) -> LogTail | None:
        """The end of the log as it is now, where one is followed for the token's query. One that is lost takes with it
        what is known of the table."""
        tail = self._tail
        if tail is None or tail.query_id != token.query_id:
            return None
        if not tail.follow():
            self._fitted.seen = self._tail = None
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

    def _newest(self, table: DeltaTable, token: BatchToken) -> TableCommit | None:
        commits = commits_of(table, self.pipeline, self.sink)
        return next((commit for commit in commits if commit.token.query_id == token.query_id), None)
