"""Maintenance of a Delta table: small files joined or reordered, files that no version needs removed.

By delta-rs, in a process of its own, without a JVM; a table that asks more than delta-rs can give goes through Spark.
No commit of these carries a position, and none lets the log forget one. Every tenth commit makes a checkpoint and lets
go of log entries older than `delta.logRetentionDuration`. delta-rs 1.6 does so after an OPTIMIZE even where it is
turned off, and Spark always does. A position is then left in the transaction ids alone; versions before 0.8 did not
write these, and Spark cannot write all of them.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.contracts import MaintenanceLock
from penstock.errors import PenstockError, TerminalError
from penstock.model.upkeep import Cleaned, Compacted
from penstock.sinks.delta import optimizing
from penstock.sinks.delta.failures import is_conflict, sink_failure, sink_failures
from penstock.sinks.delta.history import entries, entry_path, own_commits, position_of, transactions_at
from penstock.sinks.delta.schema import table_name, unsupported
from penstock.sinks.files import TableFolder
from penstock.sinks.files.stage import STAGED
from penstock.sinks.files.writer import SMALLEST_TARGET, TARGET_FILE_BYTES, worth_joining
from penstock.sinks.maintenance import CLEANING, COMPACTING, ORPHAN_AGE, ChunkProcess, ChunkResult, TableMaintenance
from penstock.sinks.spark_sql import quoted
from penstock.storage import Storage

LOG_RETENTION = timedelta(days=30)
"""Delta's default retention of log entries."""

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?", re.I)


def position_at_risk(table: DeltaTable, folder: TableFolder, pipeline: str, sink: str) -> str | None:
    """Why only the stream itself may commit now: its position is only in a log entry that may be removed."""
    settings = table.metadata().configuration
    kept = interval_of(settings.get("delta.logRetentionDuration"), LOG_RETENTION)
    newest = next(own_commits(table, folder, pipeline, sink), None)
    if newest is None:
        return None
    if time.time() - newest.at < (kept - min(timedelta(days=1), kept / 2)).total_seconds():
        return None
    noted = position_of(transactions_at(folder, table.version()) or {}, pipeline, sink)
    if noted is not None and newest.position.number and noted.next == newest.position.next:
        return None
    return "left alone: the last commit is so old that Delta's log clean-up could remove the position"


def interval_of(text: str | None, default: timedelta) -> timedelta:
    """A duration as Delta's settings have it: `interval 7 days`."""
    found = _INTERVAL.fullmatch(text.strip()) if text else None
    return timedelta(**{f"{found[2].lower()}s": int(found[1])}) if found else default


LOST_CHUNKS = 8
"""The number of consecutive chunks that may fail before a compaction ends."""

_DELTA = "spark.databricks.delta"
_BY_SPARK = ("deletionVectors", "v2Checkpoint", "icebergCompatV1", "icebergCompatV2")
Values = tuple[Any, ...]


class DeltaMaintenance(TableMaintenance[DeltaTable]):
    """Implements `contracts.Maintenance`."""

    def __init__(
        self,
        pipeline: str,
        sink: str,
        path: str,
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
        storage: Storage = Storage(),
    ) -> None:
        super().__init__(sink, target_file_bytes, cluster_by, sink_failures)
        self._pipeline = pipeline
        self._path = path
        self._folder = TableFolder(path, storage)
        self._options = storage.for_delta_at(path) or {}

    @property
    def needs_sql(self) -> bool:
        """Whether the table has features that delta-rs does not rewrite correctly."""
        with sink_failures(self._sink, "looking at the table"):
            table = self._open()
            return table is not None and bool(_spark_features(table))

    def compact(self, lock: MaintenanceLock, deadline: float) -> Compacted:
        """Join small files. Where `cluster_by` is set, a partition is reordered once it has grown enough."""
        with sink_failures(self._sink, COMPACTING):
            table = self._open()
            orders = self._orders(table) if table is not None else []
            if table is None or not orders:
                return Compacted()
            if why := position_at_risk(table, self._folder, self._pipeline, self._sink):
                return Compacted(left=why)
            if _spark_features(table):
                return self._optimize(table, lock, deadline)
            before, names = table.version(), _paths(table)
            mark = secrets.token_hex(4)
            gave_way, left = self._chunks(orders, mark, lock, deadline)
            table.update_incremental()
            self._folder.sync(path for path in map(unquote, _paths(table) - names) if self._folder.has(path))
            self._folder.sync(map(entry_path, range(before + 1, table.version() + 1)))
            removed, added = _counts(
                table, self._folder, before, (optimizing.MARK, mark), ("numFilesRemoved", "numFilesAdded")
            )
            return Compacted(removed, added, gave_way, left)

    def clean(self, keep: timedelta, lock: MaintenanceLock, deadline: float, *, dry_run: bool = False) -> Cleaned:
        """Remove files whose removal from the table is older than `keep`, and older ones that no version ever named.

        Its commits change no file, so a MERGE does not meet them: no lock is taken.
        """
        with sink_failures(self._sink, CLEANING):
            table = self._open()
            if table is None:
                return Cleaned()
            if why := position_at_risk(table, self._folder, self._pipeline, self._sink):
                return Cleaned(note=why)
            settings = table.metadata().configuration
            keep = max(keep, interval_of(settings.get("delta.deletedFileRetentionDuration"), timedelta(0)))
            staged = list(self._folder.older(STAGED, ".parquet", datetime.now(UTC) - max(keep, ORPHAN_AGE)))
            if _spark_features(table):
                found = self._vacuum_by_spark(max(keep, ORPHAN_AGE), dry_run)
            else:
                found = Cleaned(self._vacuum(table, keep, dry_run))
            for path in () if dry_run else staged:
                with suppress(OSError):
                    self._folder.remove(path)
            return Cleaned(found.files + len(staged), found.versions, found.note)

    def _optimize(self, table: DeltaTable, lock: MaintenanceLock, deadline: float) -> Compacted:
        """One OPTIMIZE by Spark, which commits part by part."""
        statement = f"OPTIMIZE {table_name(self._folder)}"
        if self._cluster_by:
            statement += f" ZORDER BY ({', '.join(map(quoted, self._cluster_by))})"
        settings = {
            f"{_DELTA}.optimize.maxFileSize": str(self._target),
            f"{_DELTA}.optimize.minFileSize": str(self._target // 2),
            f"{_DELTA}.optimize.batchSize": str(4 * self._target),
        }
        before = table.version()
        _, gave_way, left = self._run(statement, settings, lock, deadline)
        table.update_incremental()
        removed, added = _counts(
            table, self._folder, before, ("operation", "OPTIMIZE"), ("numRemovedFiles", "numAddedFiles")
        )
        return Compacted(removed, added, gave_way, left)

    def _failure(self, error: Exception) -> PenstockError | None:
        return None if is_conflict(error) else sink_failure(self._sink, COMPACTING, error)

    def _vacuum_by_spark(self, keep: timedelta, dry_run: bool) -> Cleaned:
        if dry_run and self._sql is None:
            return Cleaned(note="only Spark knows what VACUUM would remove")
        engine, hours = self._engine, _hours(keep)
        statement = f"VACUUM {table_name(self._folder)} RETAIN {hours} HOURS"
        settings = {
            f"{_DELTA}.retentionDurationCheck.enabled": "false",
            # By default VACUUM lists a folder in 10,000 tasks: two minutes for four files.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        }
        found = len(engine.run(f"{statement} DRY RUN", settings=settings))
        if found and not dry_run:
            engine.run(statement, settings=settings)
        return Cleaned(found)

    def _vacuum(self, table: DeltaTable, keep: timedelta, dry_run: bool) -> int:
        """What the log says was removed, and what no version names. Nothing found is no commit."""
        hours, orphan_hours = _hours(keep), _hours(max(keep, ORPHAN_AGE))
        removed = set(_listed(table, hours, full=False))
        old = {path for path in removed if self._folder.has(path)}  # the log names them long after they are gone
        orphans = {path for path in _listed(table, orphan_hours, full=True) if self._folder.has(path)} - removed
        for found, age, full in ((old, hours, False), (orphans, orphan_hours, True)):
            if found and not dry_run:
                table.vacuum(age, dry_run=False, enforce_retention_duration=False, full=full)
                table.update_incremental()
        return len(old | orphans)

    def _chunks(
        self, orders: Sequence[dict[str, Any]], mark: str, lock: MaintenanceLock, deadline: float
    ) -> tuple[int, str | None]:
        """Carry the orders out; a chunk that is lost is taken again, smaller. How often, and why not all was done."""
        target, gave_way, lost = self._target, 0, 0
        with ChunkProcess(optimizing.__file__, {"path": self._path, "options": self._options}) as process:
            for order in orders:
                while True:
                    size = self._target if order["columns"] else target
                    found = process.run({**order, "target": size, "mark": mark}, lock, deadline)
                    if found.ended == "done":
                        lost = 0
                        break
                    if found.ended == "time":
                        return gave_way, "the time was up"
                    if found.ended == "failure":
                        raise _failed(self._sink, found)
                    gave_way, lost = gave_way + 1, lost + 1
                    target = max(target // 4, min(SMALLEST_TARGET, self._target))
                    if lost >= LOST_CHUNKS:
                        return gave_way, "the stream left no room for it"
                    if found.ended == "conflict":
                        time.sleep(min(0.2 * lost, max(0.0, deadline - time.monotonic())))
        return gave_way, None

    def _orders(self, table: DeltaTable) -> list[dict[str, Any]]:
        """What to rewrite: all partitions at once, or each one that is worth reordering."""
        columns = list(self._cluster_by)
        parts = [
            values
            for values, sizes in _sizes_by_partition(table).items()
            if worth_joining(sizes, self._target) and (not columns or _grown(sizes, self._target))
        ]
        if not columns or _spark_features(table):
            return [{"columns": [], "filters": []}] if parts else []
        names = table.metadata().partition_columns
        return [
            {"columns": columns, "filters": [[n, "=", _text(v)] for n, v in zip(names, values, strict=True)]}
            for values in parts
        ]

    def _file_sizes(self, table: DeltaTable) -> list[list[int]]:
        return list(_sizes_by_partition(table).values())

    def _versions(self, table: DeltaTable) -> int:
        names = (name.partition(".") for name in self._folder.names("_delta_log"))
        return sum(1 for stem, _, ending in names if ending == "json" and stem.isdecimal())

    def _open(self) -> DeltaTable | None:
        if self._folder.is_file():
            return None
        try:
            return DeltaTable(self._path, storage_options=self._options or None)
        except TableNotFoundError:
            return None


def _spark_features(table: DeltaTable) -> list[str]:
    """The features of the table that only Spark rewrites correctly: more than those that matter to an append."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    return [*unsupported(table), *sorted(features.intersection(_BY_SPARK))]


def _sizes_by_partition(table: DeltaTable) -> dict[Values, list[int]]:
    files = pa.table(table.get_add_actions(flatten=True))
    columns = [files.column(f"partition.{name}").to_pylist() for name in table.metadata().partition_columns]
    sizes: dict[Values, list[int]] = defaultdict(list)
    for number, size in enumerate(files.column("size_bytes").to_pylist()):
        sizes[tuple(column[number] for column in columns)].append(size)
    return sizes


def _grown(sizes: Sequence[int], target: int) -> bool:
    """Whether a partition has grown enough to reorder all of it: by a tenth, or by a hundred files."""
    small = [size for size in sizes if size < target // 2]
    return len(small) >= 100 or sum(small) * 10 >= sum(sizes)


def _paths(table: DeltaTable) -> set[str]:
    return set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())


def _counts(
    table: DeltaTable, folder: TableFolder, before: int, mark: tuple[str, str], metrics: tuple[str, str]
) -> tuple[int, int]:
    """How many files the marked commits since a version removed and added, by these metrics of theirs."""
    since = takewhile(lambda entry: entry["version"] > before, entries(table, folder))
    found = [entry.get("operationMetrics", {}) for entry in since if entry.get(mark[0]) == mark[1]]
    removed, added = (sum(int(each.get(name, 0)) for each in found) for name in metrics)
    return removed, added


def _listed(table: DeltaTable, hours: int, *, full: bool) -> list[str]:
    return list(table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full))


def _hours(age: timedelta) -> int:
    return math.ceil(age / timedelta(hours=1))


def _text(value: Any) -> str:
    """A partition value as a filter of delta-rs takes it; null is the empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _failed(sink: str, chunk: ChunkResult) -> TerminalError:
    return TerminalError("SINK_FAILED", f"sink {sink}: {COMPACTING}: {(chunk.reason.splitlines() or [''])[0]}")
