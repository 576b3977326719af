"""The end of a table's log, followed entry by entry: all that an append goes by, whatever the size of the table.

A tail begins at a table that was looked at and checked. It holds while every entry behind that only adds and removes
files; at one that changes the table itself, takes commits back or is gone, it is lost, and the table is looked at anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.model import BatchToken
from penstock.sinks.delta.history import RESTORE, TableCommit, own_token
from penstock.sinks.delta.log_entry import entry_path, put_entry
from penstock.sinks.files import TableFolder

CHECKPOINT_INTERVAL = 10
"""Commits from one checkpoint of the log to the next, at least: Spark's figure. A checkpoint names every file of the
table, so those of one with many come less often: what they cost a commit stays as it is."""
_FILES_A_COMMIT = 100
"""So many files of the table put a checkpoint off by one commit."""
_TRIES = 50
_CHANGES = frozenset({"metaData", "protocol"})


def app_id_of(pipeline: str, sink: str, query_id: str) -> str:
    """The transaction id of the commits of one query, less their version."""
    return f"{pipeline}/{sink}/{query_id}"


@dataclass
class LogTail:
    """What is known of the log's end, for the commits of one query."""

    folder: TableFolder
    pipeline: str
    sink: str
    query_id: str
    version: int
    newest: TableCommit | None
    """The newest commit of the query."""
    seen: int | None
    """The newest batch that the table holds by its transaction id."""
    files: int
    """How many files the table had when it was last looked at."""
    since_checkpoint: int = field(init=False)

    def __post_init__(self) -> None:
        self.since_checkpoint = self.version % CHECKPOINT_INTERVAL

    @property
    def app_id(self) -> str:
        """The transaction id of the query's commits."""
        return app_id_of(self.pipeline, self.sink, self.query_id)

    def follow(self) -> bool:
        """Read what is new; false where the tail is lost."""
        while (body := self.folder.read(entry_path(self.version + 1))) is not None:
            if not self._take(body):
                return False
        return self.folder.has(entry_path(self.version))

    def append(self, entry: str, token: BatchToken) -> bool:
        """Make the entry, which carries the token, the next version; behind those of others who were first.

        False where these have the batch already, or are such that the tail is lost.
        """
        for _ in range(_TRIES):
            if put_entry(self.folder, self.version + 1, entry):
                self._advance()
                self._hold(token)
                return True
            if not self.follow() or (self.seen is not None and self.seen >= token.batch_id):
                break
        return False

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
        if any(not _CHANGES.isdisjoint(action) for action in actions):
            return False
        self._advance()
        for action in actions:
            said = action.get("commitInfo", {})
            if said.get("operation") == RESTORE:
                return False
            if action.get("txn", {}).get("appId") == self.app_id:
                self.seen = max(self.seen or 0, int(action["txn"]["version"]))
            token = own_token(said, self.pipeline, self.sink)
            if token is not None and token.query_id == self.query_id:
                self._hold(token)
        return True

    def _advance(self) -> None:
        self.version += 1
        self.since_checkpoint += 1

    def _hold(self, token: BatchToken) -> None:
        self.newest = TableCommit(self.version, token, kept=True)
        self.seen = max(self.seen or 0, token.batch_id)
