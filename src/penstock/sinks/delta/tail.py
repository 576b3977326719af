"""The end of a table's log: followed entry by entry, and the entries that Penstock writes itself.

An append needs only the tail, whatever the size of the table. A tail starts from a table that was read and checked, and
is valid while every later entry only adds and removes files. An entry that changes the table itself, or a RESTORE, or a
log that is gone invalidates it, and the table is read again.

Why not delta-rs: it loads the list of all files for every commit. After 1,000 commits a batch of ten rows, staged and
committed, took 18 ms with the tail and 38 ms with delta-rs, which does not sync its entry to disk (median of 100, by
turns on one machine; after 300 commits 25 and 47 ms). For a replacement of files delta-rs has no call, and both it and
Spark treat any append that lands meanwhile as a conflict with a replacement by a condition: next to a stream that
commits every second neither would ever succeed. An entry that names its files does not conflict. It gets the file name
of the next version, which only one writer can create.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.model import Position
from penstock.sinks.commit import position_moved
from penstock.sinks.delta.failures import others_first
from penstock.sinks.delta.history import RESTORE, CommittedPosition, app_id, entry_path, own_commit, transactions_of
from penstock.sinks.delta.stage import StagedDeltaFile
from penstock.sinks.files import TableFolder

_AS_THEY_ARE = "/!$&'()+,-.:;=@_~"
"""The characters that delta-rs leaves in a path: a later remove must have the very text of the add."""


def replacement_entry(
    metadata: Mapping[str, object],
    transactions: Mapping[str, int],
    condition: str,
    removed: Sequence[str],
    added: Sequence[StagedDeltaFile],
    partition_by: Sequence[str],
) -> str:
    """The lines of a commit that replaces files. `removed` are paths as the log has them."""
    now = int(time.time() * 1000)
    gone = (
        {"remove": {"path": path, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": False}}
        for path in removed
    )
    parameters = {"mode": "Overwrite", "predicate": condition}
    return _lines(_head(metadata, transactions, parameters), gone, _adds(added, partition_by))


def append_entry(
    metadata: Mapping[str, object],
    transactions: Mapping[str, int],
    added: Sequence[StagedDeltaFile] = (),
    partition_by: Sequence[str] = (),
) -> str:
    """The lines of a commit that adds files, or none, and conflicts with no other writer."""
    return _lines(_head(metadata, transactions, {"mode": "Append"}), _adds(added, partition_by))


def put_entry(folder: TableFolder, version: int, entry: str) -> bool:
    """Make the entry the table's next version, durably; false where another writer was first."""
    return folder.put_new(entry_path(version), entry.encode())


def _head(
    metadata: Mapping[str, object], transactions: Mapping[str, int], parameters: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    now = int(time.time() * 1000)
    yield {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": parameters,
            "engineInfo": "penstock",
            "isBlindAppend": parameters["mode"] == "Append",
            # Unique, so that a writer that gets no answer can see whether an existing entry is its own.
            "txnId": secrets.token_hex(16),
            **metadata,
        }
    }
    for name, version in transactions.items():
        yield {"txn": {"appId": name, "version": version, "lastUpdated": now}}


def _adds(added: Sequence[StagedDeltaFile], partition_by: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    now = int(time.time() * 1000)
    for file in added:
        yield {
            "add": {
                "path": quote(file.path, safe=_AS_THEY_ARE),
                "partitionValues": dict(zip(partition_by, file.partition_values, strict=True)),
                "size": file.size_bytes,
                "modificationTime": now,
                "dataChange": True,
                "stats": file.statistics,
            }
        }


def _lines(*parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(
        f"{json.dumps(action, separators=(',', ':'), ensure_ascii=False)}\n" for actions in parts for action in actions
    )


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
    committed: CommittedPosition
    """Where the pipeline and sink stand at this version."""
    count: int
    """The version of the sink's transaction id, which every commit increments. RESTORE does not reset it."""
    files: int
    """How many files the table had when last checked."""
    own: int = 0
    """How many commits of this pipeline and sink were followed."""
    since_checkpoint: int = field(init=False)
    _noted: bool = False
    """Whether the transaction ids contain the whole position."""
    _fresh: bool = True
    """Whether the log was read since the last commit."""

    def __post_init__(self) -> None:
        self.since_checkpoint = self.version % CHECKPOINT_INTERVAL

    @property
    def position(self) -> Position | None:
        """The position at this version."""
        return self.committed.position

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

    def append(self, entry: str, committed: CommittedPosition, onto: Position | None) -> None:
        """Make the entry, which makes `committed` current, the next version, after those of others who were first."""
        # The log was not read since the last commit, and a store takes the entry even where the table was removed.
        if not self._fresh and not self.folder.has(entry_path(self.version)):
            raise others_first(self.sink)
        for _ in range(_TRIES):
            if self.position != onto:
                raise position_moved(self.sink)
            if self.put(entry, committed):
                return
            if not self.follow():
                raise others_first(self.sink)
        raise others_first(self.sink)

    def put(self, entry: str, committed: CommittedPosition) -> bool:
        """Make the entry, which makes `committed` current, the next version; false where another writer was first."""
        if not put_entry(self.folder, self.version + 1, entry):
            return False
        self.count += 1
        self._advance()
        self._hold(committed)
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
        """Write a checkpoint, so that the table opens without reading many entries. Nothing depends on it."""
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
                self._hold(CommittedPosition(position, attempt))
        return True

    def _advance(self) -> None:
        self.version += 1
        self.since_checkpoint += 1

    def _hold(self, committed: CommittedPosition) -> None:
        self.committed, self._noted = committed, False
        self.own += 1

    def _noting(self, position: Position) -> dict[str, int]:
        return transactions_of(self.pipeline, self.sink, position, self.position, whole=not self._noted)


def _loses(action: Mapping[str, Any]) -> bool:
    """Whether an entry with this action changes the table itself, or takes commits back."""
    return not _CHANGES.isdisjoint(action) or action.get("commitInfo", {}).get("operation") == RESTORE
