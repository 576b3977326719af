"""The end of a table's log, followed entry by entry: all that an append goes by, whatever the size of the table.

A tail begins at a table that was looked at and checked. It holds while every later entry only adds and removes files;
at one that changes the table itself, takes commits back or is gone, it is lost, and the table is looked at anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.model import Position
from penstock.sinks.commit import position_moved
from penstock.sinks.delta.failures import others_first
from penstock.sinks.delta.history import RESTORE, Standing, own_commit
from penstock.sinks.delta.log_entry import append_entry, entry_path, put_entry
from penstock.sinks.delta.transactions import app_id, transactions_of
from penstock.sinks.files import TableFolder

CHECKPOINT_INTERVAL = 10
"""Commits from one checkpoint of the log to the next, at least: Spark's figure. A checkpoint names every file of the
table, so those of one with many come less often: what they cost a commit stays as it is."""
_FILES_A_COMMIT = 100
"""This many files of the table put a checkpoint off by one commit."""
_TRIES = 50
_CHANGES = frozenset({"metaData", "protocol"})


@dataclass
class LogTail:
    """What is known of the log's end, for the commits of one pipeline and sink."""

    folder: TableFolder
    pipeline: str
    sink: str
    version: int
    standing: Standing
    """Where the pipeline and sink stand at this version."""
    count: int
    """The version of their own transaction id, which every commit raises. RESTORE does not take it back."""
    files: int
    """How many files the table had when it was last looked at."""
    own: int = 0
    """How many commits of this pipeline and sink were followed."""
    since_checkpoint: int = field(init=False)
    _noted: bool = False
    """Whether the transaction ids say the whole position."""
    _fresh: bool = True
    """Whether the log was looked at since the last commit."""

    def __post_init__(self) -> None:
        self.since_checkpoint = self.version % CHECKPOINT_INTERVAL

    @property
    def position(self) -> Position | None:
        """The position at this version."""
        return self.standing.position

    @property
    def transaction(self) -> tuple[str, int]:
        """The one transaction id that every commit of this pipeline and sink shares, with its next version."""
        return app_id(self.pipeline, self.sink), self.count + 1

    def transactions(self, position: Position) -> dict[str, int]:
        """All transaction ids of a commit onto the present position."""
        return dict([self.transaction]) | self._noting(position)

    def follow(self) -> bool:
        """Read what is new; false where the tail is lost."""
        self._fresh = True
        while (body := self.folder.read(entry_path(self.version + 1))) is not None:
            if not self._take(body):
                return False
        return self.folder.has(entry_path(self.version))

    def append(self, entry: str, standing: Standing, onto: Position | None) -> None:
        """Make the entry, which makes `standing` current, the next version, after those of others who were first."""
        # The log was not read since the last commit, and a store takes the entry even where the table was removed.
        if not self._fresh and not self.folder.has(entry_path(self.version)):
            raise others_first(self.sink)
        for _ in range(_TRIES):
            if self.position != onto:
                raise position_moved(self.sink)
            if self.put(entry, standing):
                return
            if not self.follow():
                raise others_first(self.sink)
        raise others_first(self.sink)

    def put(self, entry: str, standing: Standing) -> bool:
        """Make the entry, which makes `standing` current, the next version; false where another writer was first."""
        if not put_entry(self.folder, self.version + 1, entry):
            return False
        self.count += 1
        self._advance()
        self._hold(standing)
        self._noted, self._fresh = True, False
        return True

    def note(self, metadata: Mapping[str, object]) -> None:
        """After a commit that could carry one transaction id alone: an entry with the others, if the next is free."""
        if self.position is not None and not self._noted:
            entry = append_entry(metadata, self._noting(self.position))
            if put_entry(self.folder, self.version + 1, entry):
                self._advance()
                self._noted = True

    def checkpoint_when_due(self, open_table: Callable[[], DeltaTable]) -> None:
        """Spare whoever opens the table next the reading of many entries. Nothing depends on it."""
        if self.since_checkpoint < max(CHECKPOINT_INTERVAL, self.files // _FILES_A_COMMIT):
            return
        self.since_checkpoint = 0
        with suppress(OSError, DeltaError):
            table = open_table()
            table.create_checkpoint()
            self.files = table.get_add_actions().num_rows
            if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
                table.cleanup_metadata()

    def _take(self, body: bytes) -> bool:
        actions = [json.loads(line) for line in body.splitlines() if line.strip()]
        if any(_loses(action) for action in actions):
            return False
        self._advance()
        for action in actions:
            said = action.get("commitInfo", {})
            txn = action.get("txn", {})
            if txn.get("appId") == app_id(self.pipeline, self.sink):
                self.count = int(txn["version"])
            own = own_commit(said, self.pipeline, self.sink)
            if own is not None:
                position, attempt = own
                if not position.number and self.position is not None:  # by a version before 0.8
                    position = Position.united(position, [self.position])
                self._hold(Standing(position, attempt))
        return True

    def _advance(self) -> None:
        self.version += 1
        self.since_checkpoint += 1

    def _hold(self, standing: Standing) -> None:
        self.standing, self._noted = standing, False
        self.own += 1

    def _noting(self, position: Position) -> dict[str, int]:
        return transactions_of(self.pipeline, self.sink, position, self.position, whole=not self._noted)


def _loses(action: Mapping[str, Any]) -> bool:
    """Whether an entry with this action changes the table itself, or takes commits back."""
    return not _CHANGES.isdisjoint(action) or action.get("commitInfo", {}).get("operation") == RESTORE
