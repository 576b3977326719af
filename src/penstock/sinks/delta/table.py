"""One Delta table as a sink sees it: prepared, checked, and read for the position that its log holds.

The metadata of a commit holds the whole position. A commit that Penstock writes itself is the next entry of the log,
made only while the entries before it leave the position as it was. One by delta-rs or Spark raises the transaction id
that all commits of the pipeline and sink share: both refuse it where another one of these got in between.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from penstock.contracts import SqlEngine
from penstock.errors import PenstockError, TerminalError
from penstock.model import BatchToken, Position, Verdict, decide
from penstock.sinks.commit import position_moved
from penstock.sinks.delta.failures import EngineError, others_first, sink_failure, sink_failures, table_changed
from penstock.sinks.delta.fitted import FittedTable
from penstock.sinks.delta.history import (
    CommittedPosition,
    app_id,
    commit_metadata,
    entry_path,
    files_added,
    own_commits,
    standing_of,
    writers,
)
from penstock.sinks.delta.schema import held_columns, identity_of, takes_bare_entries, unsupported
from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.delta.tail import LogTail, append_entry, replacement_entry
from penstock.sinks.evolution import Evolve, Fit
from penstock.sinks.files import TableFolder, staged_prefix
from penstock.storage import Storage

_LOOKS = 10


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
        self._outdated: set[str] = set()
        self._attempt = ""

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

    def position(self) -> Position | None:
        """Where this pipeline and sink stand in the table, whichever query committed last."""
        with sink_failures(self.sink, "reading the table's history"):
            tail = self._log()
            return None if tail is None else tail.position

    def has_committed(self, token: BatchToken) -> bool:
        """Whether the batch is in the table, beyond doubt."""
        return decide(self.position(), token) is Verdict.COMMITTED

    def standing(self, onto: Position | None) -> LogTail:
        """The end of the log, where the table stands at `onto`. Looks at the table only where it seems not to."""
        tail = self._tail
        if tail is None or tail.position != onto:
            tail = self._log()
        if tail is None:
            raise self._gone()
        if tail.position != onto:
            raise position_moved(self.sink)
        return tail

    def standing_table(self, onto: Position | None) -> DeltaTable:
        """The table at its newest version, where it stands at `onto`: for a commit that needs more than the log."""
        for _ in range(_LOOKS):
            tail = self._log()
            table = None if tail is None else self._fitted.now()
            if tail is None or table is None:
                raise self._gone()
            if tail.position != onto:
                raise position_moved(self.sink)
            if table.version() == tail.version:
                return self.current()
        raise others_first(self.sink)

    @contextmanager
    def landing(self, position: Position) -> Iterator[None]:
        """Around one attempt to make a position current: what goes wrong inside is an error of the sink.

        A commit whose answer was lost has landed where the table's position is the one of this very attempt.
        """
        self._attempt = secrets.token_hex(8)
        try:
            yield
        except (OSError, DeltaError, EngineError, pa.ArrowException) as error:
            self._fitted.seen = self._tail = None
            with suppress(PenstockError):
                self.position()
                if self._require_tail().standing == CommittedPosition(position, self._attempt):
                    return
            raise sink_failure(self.sink, f"committing batch {position.last.batch_id}", error) from error

    def refuse_outdated(self, files: Sequence[StagedFile]) -> None:
        """Refuse files that were staged for the table as it was before, however often they are tried."""
        before = self.written
        self.current()
        if self.bound or self.written != before:
            self._outdated |= {file.path for file in files}
        if not self._outdated.isdisjoint(file.path for file in files):
            raise table_changed(self.sink)

    def append(self, position: Position, files: Sequence[StagedFile], onto: Position | None) -> None:
        """Name files in the log, with the position, in one commit. No files are a commit too.

        A blind append does not disturb a MERGE or OPTIMIZE that runs at the same time.
        """
        tail = self.standing(onto)
        entry = append_entry(self.metadata(position), tail.transactions(position), files, self.partition_by)
        tail.append(entry, CommittedPosition(position, self._attempt), onto)
        tail.checkpoint_when_due(self._fitted.opened)

    def replace_files(
        self, position: Position, condition: str, removed: Sequence[str], added: Sequence[StagedFile]
    ) -> bool:
        """Replace files of the standing table, in one commit; false where another writer was first."""
        tail = self._require_tail()
        metadata, transactions = self.metadata(position), tail.transactions(position)
        entry = replacement_entry(metadata, transactions, condition, removed, added, self.partition_by)
        return tail.put(entry, CommittedPosition(position, self._attempt))

    def metadata(self, position: Position) -> dict[str, object]:
        """What the commit that is being landed says about itself."""
        return commit_metadata(self.pipeline, self.sink, position, self._attempt)

    def properties(self, position: Position) -> CommitProperties:
        """What a commit by delta-rs onto the standing table carries."""
        transactions, now = self._require_tail().transactions(position), int(time.time() * 1000)
        return CommitProperties(
            custom_metadata=self.metadata(position),
            app_transactions=[Transaction(name, version, now) for name, version in transactions.items()],
        )

    def transaction(self) -> tuple[str, int]:
        """The one transaction that a commit by Spark onto the standing table carries."""
        return self._require_tail().transaction

    def confirm(self, position: Position) -> None:
        """After a commit by delta-rs or Spark: check that it is there, and that no other of this sink came in between.

        Delta silently skips a statement whose transaction it has seen.
        """
        tail = self._require_tail()
        version, own = tail.version, tail.own
        self.position()
        if self._tail is tail:
            self.folder.sync(map(entry_path, range(version + 1, tail.version + 1)))
        if self._require_tail().standing != CommittedPosition(position, self._attempt):
            raise position_moved(self.sink)
        if self._tail is tail and tail.own > own + 1:
            raise TerminalError(
                "FENCED",
                f"sink {self.sink}: another run of this pipeline committed to the table at the same moment",
                context={"path": self.path, "versions": f"{version + 1} to {tail.version}"},
                hint="stop the other run, and compare the table with the topic: rows may be there twice",
            )

    def note_transactions(self) -> None:
        """After a commit by Spark, which carries one transaction: an entry with the others, where the table allows it.

        They matter only after a clean-up of the log, and the next commit writes them too, so a failure is ignored.
        """
        with suppress(OSError, DeltaError, PenstockError):
            if takes_bare_entries(self.current()):
                self._require_tail().note(commit_metadata(self.pipeline, self.sink))

    def takes_bare_entries(self) -> bool:
        """Whether Penstock may write an entry without files to the log of the table."""
        return takes_bare_entries(self.current())

    def committed_files(self, token: BatchToken) -> set[str] | None:
        """The files that the commits of a batch added; none where it is not committed, or the log does not say."""
        table = self._fitted.now()
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
            table = self._fitted.now()
            found = writers(table, self.folder) if table is not None else set()
        return sorted("/".join(writer) for writer in found - {(self.pipeline, self.sink)})

    def current(self) -> DeltaTable:
        """The table as it was last looked at; checked again where it changed since."""
        table = self._fitted.seen
        if table is None:
            raise self._gone()
        if self.written is not None and identity_of(table) != self._checked:
            self._keep(table, self._fitted.fit(table, self.written, replace(self._fitted.fitting, evolve="fail")))
        return table

    def prefix(self, token: BatchToken) -> str:
        """How the names of a batch's files begin."""
        return staged_prefix("part", self.pipeline, self.sink, token)

    def _keep(self, table: DeltaTable, fit: Fit) -> None:
        """Note what the next batch goes by, until the table changes."""
        self.written, self._held, self.bound = fit.taken, held_columns(table), tuple(unsupported(table))
        self._checked = identity_of(table)

    def _log(self) -> LogTail | None:
        """The end of the log as it is now, read from the table again where it is lost; none where there is no table."""
        if self._tail is not None:
            if self._tail.follow():
                return self._tail
            self._fitted.seen = self._tail = None
        table = None if self.folder.is_file() else self._fitted.now()
        if table is None:
            return None
        held = standing_of(table, self.folder, self.pipeline, self.sink)
        count = table.transaction_version(app_id(self.pipeline, self.sink)) or 0
        where = (self.folder, self.pipeline, self.sink, table.version())
        self._tail = LogTail(*where, held, count, table.get_add_actions().num_rows)
        return self._tail

    def _require_tail(self) -> LogTail:
        if self._tail is None:
            raise others_first(self.sink)
        return self._tail

    def _gone(self) -> TerminalError:
        return TerminalError(
            "SINK_TABLE_GONE",
            f"sink {self.sink}: the table is not there any more",
            context={"path": self.path},
            hint="put the table back, and run again\n"
            "or write its rows again from the topics, into a new table: penstock run FILE --catch-up",
        )
