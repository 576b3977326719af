"""One Delta table as a sink sees it: opened or created, fitted to the rows, and committed to with the position.

The metadata of a commit contains the whole position. A commit that Penstock writes itself is the next entry of the log,
made only while the entries before it leave the position as it was. One by delta-rs or Spark raises the transaction id
that all commits of the pipeline and sink share: both refuse it where another commit of them came first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.contracts import SqlEngine
from penstock.errors import MissingError, PenstockError, TerminalError
from penstock.model import BatchToken, Position, Verdict, decide
from penstock.sinks.commit import position_moved
from penstock.sinks.delta.failures import others_first, sink_failure, sink_failures, table_changed
from penstock.sinks.delta.history import (
    CommittedPosition,
    app_id,
    commit_metadata,
    entry_path,
    files_added,
    own_commits,
    read_position,
    writers,
)
from penstock.sinks.delta.schema import (
    allows_bare_entries,
    alter_statements,
    changed_fields,
    check_schema,
    complete_protocol,
    delta_type,
    identity_of,
    refuse_unsupported,
    table_columns,
    table_name,
    unsupported,
)
from penstock.sinks.delta.stage import StagedDeltaFile
from penstock.sinks.delta.tail import CHECKPOINT_INTERVAL, LogTail, append_entry, replacement_entry
from penstock.sinks.evolution import Evolve, Fit, Fitting, check_partitions
from penstock.sinks.files import TableFolder, staged_batch, staged_prefix
from penstock.sinks.spark_sql import require_engine
from penstock.storage import Storage

_CHANGING = "changing the table's columns"
_TRIES = 10
_PREPARE_TRIES = 5
_EMPTY_CHECKS = 5
_EMPTY_CHECK_SECONDS = 0.1


class SinkTable:
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
        self.written: pa.Schema | None = None
        """What is written of the rows that the table was prepared for, in the table's types."""
        self.spark_features: tuple[str, ...] = ()
        """What the table requires of its writers that only Spark provides."""
        self._fitting = Fitting(sink, evolve, describe=delta_type)
        self._storage = storage
        self._through_spark = False
        """Whether rows may be committed by Spark."""
        self._table: DeltaTable | None = None
        self._columns: pa.Schema | None = None
        self._checked = ""
        self._tail: LogTail | None = None
        self._outdated: set[str] = set()
        self._attempt = ""

    def __getstate__(self) -> dict[str, Any]:
        # An open table does not pickle, and tasks need neither it nor the end of the log.
        return {**self.__dict__, "_table": None, "_tail": None}

    # The table and the rows.

    def prepare(self, schema: pa.Schema, *, sql: SqlEngine | None, through_spark: bool) -> None:
        """Create the table, or check it and make the changes that `evolve` allows. Again in a run: for other rows.

        `sql` makes the changes that delta-rs cannot; `through_spark` is whether rows may be committed by Spark.
        """
        self._through_spark = through_spark
        with sink_failures(self.sink, "preparing the table"):
            table, fit = self._prepare(schema, sql)
            self._remember(table, fit)
            self.settings = table.metadata().configuration

    def check(self, schema: pa.Schema) -> Fit | None:
        """How the rows fit the table as it is now; none where there is no table. Raises where they do not."""
        with sink_failures(self.sink, "looking at the table"):
            table = self._existing()
            if table is None:
                self._writable(schema, None)
                return None
            self.settings = table.metadata().configuration
            return self._compare(table, schema, self._fitting)

    def staged(self, schema: pa.Schema) -> pa.Schema:
        """In a task: what of these rows is written, in the types that the table had when it was last read."""
        return schema if self._columns is None else self._fitting.staged(schema, self._columns)

    def open(self) -> DeltaTable | None:
        """The table as it is now, if it exists."""
        with sink_failures(self.sink, "looking at the table"):
            return self._refreshed()

    def current(self) -> DeltaTable:
        """The table as it was last read; checked again where it changed since."""
        table = self._table
        if table is None:
            raise self._gone()
        if self.written is not None and identity_of(table) != self._checked:
            self._remember(table, self._fit(table, self.written, replace(self._fitting, evolve="fail")))
        return table

    def _prepare(self, schema: pa.Schema, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """The table as these rows need it. Pipelines that share one, such as a quarantine, may create it at once."""
        for left in reversed(range(_PREPARE_TRIES)):
            try:
                table = self._existing() or self._create(self._writable(schema, None))
                fit = self._fit(table, schema, self._fitting)
                if fit.changes_target:
                    table, fit = self._change(table, schema, fit, sql)
                if not unsupported(table):
                    complete_protocol(table)
                return table, fit
            except CommitFailedError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _existing(self) -> DeltaTable | None:
        """The table, if there is one; refused where other files are in its place."""
        found = None
        # Files without a table may be one that is being created at this moment: so more than one check.
        for _ in range(_EMPTY_CHECKS):
            table = self._refreshed()
            if table is not None or (found := self._other_file()) is None:
                return table
            time.sleep(_EMPTY_CHECK_SECONDS)
        raise self._not_a_table("the folder has files but no Delta table", found)

    def _not_a_table(self, reason: str, found: str | None) -> MissingError:
        return MissingError(
            "SINK_PATH_NOT_A_TABLE",
            f"sink {self.sink}: {reason}",
            context={"path": self.path, "found": found},
            hint="use an empty folder, or convert the files to a Delta table first",
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

    def _refreshed(self) -> DeltaTable | None:
        """The table as it is now, or none. A refresh of an open one reads only what is new."""
        if self._table is None and self.folder.is_file():
            raise self._not_a_table("the table's folder is a file", self.path)
        try:
            if self._table is None:
                self._table = self._opened()
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
        return self._table

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.path, storage_options=self._storage.for_delta_at(self.path))

    def _create(self, schema: pa.Schema) -> DeltaTable:
        self._table = DeltaTable.create(
            self.path,
            schema=Schema.from_arrow(pa.schema([field.remove_metadata() for field in schema])),
            mode="ignore",
            partition_by=list(self.partition_by),
            configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
            storage_options=self._storage.for_delta_at(self.path),
        )
        return self._table

    def _fit(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting) -> Fit:
        """How the rows fit the table; refused where it requires Spark and is written without."""
        features = unsupported(table)
        if features and not self._through_spark:
            hint = "start again: the table is then written through Spark; or drop the feature from the table"
            raise refuse_unsupported(self.sink, features, hint)
        return self._compare(table, schema, fitting)

    def _compare(self, table: DeltaTable, schema: pa.Schema, fitting: Fitting) -> Fit:
        """How the rows fit the table, whoever writes them."""
        self._writable(schema, table)
        check_partitions(self.sink, self.partition_by, table.metadata().partition_columns)
        return fitting.fit(schema, table_columns(table))

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

    def _change(self, table: DeltaTable, schema: pa.Schema, fit: Fit, sql: SqlEngine | None) -> tuple[DeltaTable, Fit]:
        """Make the changes to the table. Another run that makes the same ones at the same time may be first."""
        failure: Exception | None = None
        try:
            if fit.widened or unsupported(table):
                engine = require_engine(sql, self.sink, _CHANGING)
                with sink_failures(self.sink, _CHANGING):
                    engine.run(*alter_statements(table_name(self.folder), fit))
            else:
                table.alter.add_columns(changed_fields(table, fit))
        except (PenstockError, DeltaError) as error:
            failure = error
        now = self._refreshed() or table
        fit = self._fit(now, schema, self._fitting)
        if fit.changes_target:
            raise failure or table_changed(self.sink)
        return now, fit

    def _remember(self, table: DeltaTable, fit: Fit) -> None:
        """Keep what the next batches rely on, until the table changes."""
        self.written, self._columns = fit.taken, table_columns(table)
        self.spark_features, self._checked = tuple(unsupported(table)), identity_of(table)

    # The position.

    def position(self) -> Position | None:
        """The position of this pipeline and sink in the table, whichever query committed last."""
        with sink_failures(self.sink, "reading the table's history"):
            tail = self._follow()
            return None if tail is None else tail.position

    def has_committed(self, token: BatchToken) -> bool:
        """Whether the batch is in the table, beyond doubt."""
        return decide(self.position(), token) is Verdict.COMMITTED

    def committed_files(self, token: BatchToken) -> set[str] | None:
        """The files that the commits of a batch added; none where it is not committed, or the log does not say."""
        table = self._refreshed()
        if table is None or not self.has_committed(token):
            return None
        found: set[str] = set()
        for commit in own_commits(table, self.folder, self.pipeline, self.sink):
            last = commit.position.last
            if (last.query_id, last.batch_id) == (token.query_id, token.batch_id):
                files = files_added(self.folder, commit.version)
                if files is None:
                    return None
                found |= files
        return found or None

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have a position in the table."""
        with sink_failures(self.sink, "reading the table's history"):
            table = self._refreshed()
            found = writers(table, self.folder) if table is not None else set()
        return sorted("/".join(writer) for writer in found - {(self.pipeline, self.sink)})

    def require_position(self, onto: Position | None) -> LogTail:
        """The end of the log, where the position is `onto`. Reads the table again only where it seems to differ."""
        tail = self._tail
        if tail is None or tail.position != onto:
            tail = self._follow()
        if tail is None:
            raise self._gone()
        if tail.position != onto:
            raise position_moved(self.sink)
        return tail

    def table_at(self, onto: Position | None) -> DeltaTable:
        """The table at its newest version, where the position is `onto`: for a commit that needs more than the log."""
        for _ in range(_TRIES):
            tail = self._follow()
            table = None if tail is None else self._refreshed()
            if tail is None or table is None:
                raise self._gone()
            if tail.position != onto:
                raise position_moved(self.sink)
            if table.version() == tail.version:
                return self.current()
        raise others_first(self.sink)

    def _follow(self) -> LogTail | None:
        """The end of the log as it is now, read from the table again where it was lost; none without a table."""
        if self._tail is not None:
            if self._tail.follow():
                return self._tail
            self._table = self._tail = None
        table = self._refreshed()
        if table is None:
            return None
        committed = read_position(table, self.folder, self.pipeline, self.sink)
        count = table.transaction_version(app_id(self.pipeline, self.sink)) or 0
        where = (self.folder, self.pipeline, self.sink, table.version())
        self._tail = LogTail(*where, committed, count, table.get_add_actions().num_rows)
        return self._tail

    def _require_tail(self) -> LogTail:
        if self._tail is None:
            raise others_first(self.sink)
        return self._tail

    # Commits.

    @contextmanager
    def landing(self, position: Position) -> Iterator[None]:
        """Around one attempt to make a position current: what goes wrong inside is an error of the sink.

        A commit whose answer was lost has landed where the table's position comes from this very attempt.
        """
        self._attempt = secrets.token_hex(8)
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            self._table = self._tail = None
            with suppress(PenstockError):
                self.position()
                if self._require_tail().committed == CommittedPosition(position, self._attempt):
                    return
            raise sink_failure(self.sink, f"committing batch {position.last.batch_id}", error) from error

    def require_up_to_date(self, files: Sequence[StagedDeltaFile]) -> None:
        """Refuse files that were staged for the table as it was before, however often they are tried."""
        before = self.written
        self.current()
        if self.spark_features or self.written != before:
            self._outdated |= {file.path for file in files}
        if not self._outdated.isdisjoint(file.path for file in files):
            raise table_changed(self.sink)

    def append(self, position: Position, files: Sequence[StagedDeltaFile], onto: Position | None) -> None:
        """Add files with the position, in one commit. No files are a commit too.

        A blind append does not disturb a MERGE or OPTIMIZE that runs at the same time.
        """
        tail = self.require_position(onto)
        entry = append_entry(self.metadata(position), tail.transactions(position), files, self.partition_by)
        tail.append(entry, CommittedPosition(position, self._attempt), onto)
        tail.checkpoint_when_due(self._opened)

    def replace_files(
        self, position: Position, condition: str, removed: Sequence[str], added: Sequence[StagedDeltaFile]
    ) -> bool:
        """Replace files of `table_at`, in one commit; false where another writer was first."""
        tail = self._require_tail()
        metadata, transactions = self.metadata(position), tail.transactions(position)
        entry = replacement_entry(metadata, transactions, condition, removed, added, self.partition_by)
        return tail.put(entry, CommittedPosition(position, self._attempt))

    def metadata(self, position: Position) -> dict[str, object]:
        """What the commit in progress says about itself."""
        return commit_metadata(self.pipeline, self.sink, position, self._attempt)

    def properties(self, position: Position) -> CommitProperties:
        """What a commit by delta-rs onto `table_at` carries."""
        transactions, now = self._require_tail().transactions(position), int(time.time() * 1000)
        return CommitProperties(
            custom_metadata=self.metadata(position),
            app_transactions=[Transaction(name, version, now) for name, version in transactions.items()],
        )

    def transaction(self) -> tuple[str, int]:
        """The one transaction id that a commit by Spark onto `table_at` carries."""
        return self._require_tail().transaction

    def confirm(self, position: Position) -> None:
        """After a commit by delta-rs or Spark: check that it landed, and that no other of this sink came in between.

        Delta silently skips a statement whose transaction it has seen.
        """
        tail = self._require_tail()
        version, own = tail.version, tail.own
        self.position()
        if self._tail is tail:
            self.folder.sync(map(entry_path, range(version + 1, tail.version + 1)))
        if self._require_tail().committed != CommittedPosition(position, self._attempt):
            raise position_moved(self.sink)
        if self._tail is tail and tail.own > own + 1:
            raise TerminalError(
                "FENCED",
                f"sink {self.sink}: another run of this pipeline committed to the table at the same moment",
                context={"path": self.path, "versions": f"{version + 1} to {tail.version}"},
                hint="stop the other run, and compare the table with the topic: rows may be duplicated",
            )

    def write_transaction_ids(self) -> None:
        """After a commit by Spark, which carries one transaction id: add an entry with the others where allowed.

        They matter only after a clean-up of the log, and the next commit writes them too, so a failure is ignored.
        """
        with suppress(OSError, DeltaError, PenstockError):
            if self.allows_bare_entries():
                self._require_tail().note(commit_metadata(self.pipeline, self.sink))

    def allows_bare_entries(self) -> bool:
        """Whether Penstock may write an entry without files to the log of the table."""
        return allows_bare_entries(self.current())

    def prefix(self, token: BatchToken) -> str:
        """How the names of a batch's files begin."""
        return staged_prefix("part", self.pipeline, self.sink, token)

    def _gone(self) -> TerminalError:
        return TerminalError(
            "SINK_TABLE_GONE",
            f"sink {self.sink}: the table no longer exists",
            context={"path": self.path},
            hint="restore the table, and run again\n"
            "or write its rows again from the topics, into a new table: penstock run FILE --catch-up",
        )
