"""Maintenance of an Iceberg table, by Spark's procedures: files and manifests rewritten, snapshots and orphans removed.

No snapshot of these carries a position. The newest that does has a tag, which an expiry keeps, for every pipeline and
sink that writes to the table; where that does not hold, no snapshot expires.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from penstock.contracts import MaintenanceLock
from penstock.errors import PenstockError
from penstock.model import live_name
from penstock.model.upkeep import Cleaned, Compacted
from penstock.sinks.files import TableFolder
from penstock.sinks.files.stage import STAGED
from penstock.sinks.files.writer import TARGET_FILE_BYTES, worth_joining
from penstock.sinks.iceberg.failures import is_conflict, sink_failure, sink_failures
from penstock.sinks.iceberg.history import OwnSnapshot, history_of, mark_of, writers_of
from penstock.sinks.iceberg.table import RETAIN_TAG, CatalogTable
from penstock.sinks.maintenance import CLEANING, COMPACTING, ORPHAN_AGE, NoLock, TableMaintenance
from penstock.sinks.spark_sql import literal, quoted
from penstock.storage import Storage

MANY_MANIFESTS = 20
"""The number of manifests from which on they are rewritten."""

_MAX_REF_AGE = "history.expire.max-ref-age-ms"


class IcebergMaintenance(TableMaintenance[Table]):
    """Implements `contracts.Maintenance`. Figures are read without Spark; the rest runs through Spark."""

    needs_sql = True

    def __init__(
        self,
        sink: str,
        catalog_table: CatalogTable,
        target_file_bytes: int = TARGET_FILE_BYTES,
        cluster_by: Sequence[str] = (),
        storage: Storage = Storage(),
    ) -> None:
        super().__init__(sink, target_file_bytes, cluster_by, sink_failures)
        self._storage = storage
        self._catalog_table = catalog_table
        self._name = literal(quoted(*catalog_table.identifier))
        self._system = f"{quoted(catalog_table.catalog.name)}.system"
        self._settings = catalog_table.spark_settings

    def compact(self, lock: MaintenanceLock, deadline: float) -> Compacted:
        """Join small files, ordered by `cluster_by`, and then manifests where they are many."""
        with sink_failures(self._sink, COMPACTING):
            table = self._open()
            if table is None:
                return Compacted()
            done = Compacted()
            if any(worth_joining(sizes, self._target) for sizes in self._file_sizes(table)):
                done = self._rewrite(lock, deadline)
            if done.left is None and _manifests(self._open()) >= MANY_MANIFESTS:
                _, gave_way, left = self._call(f"rewrite_manifests(table => {self._name})", lock, deadline)
                done = Compacted(done.removed, done.added, done.gave_way + gave_way, left)
            return done

    def clean(self, keep: timedelta, lock: MaintenanceLock, deadline: float, *, dry_run: bool = False) -> Cleaned:
        """Expire snapshots older than `keep` that no branch or tag names, and remove files that none names."""
        with sink_failures(self._sink, CLEANING):
            table = self._open()
            if table is None:
                return Cleaned()
            notes, before = [], datetime.now(UTC) - keep
            if not dry_run:
                table = self._tagged(table)
            expiring = _expiring(table, before)
            if expiring and (why := _unsafe(table)):
                expiring, notes = 0, [why]
            staged = list(_forgotten(table, max(keep, ORPHAN_AGE), self._storage))
            if dry_run and self._sql is None:
                notes.append("only Spark can find the files that no snapshot names")
                return Cleaned(len(staged), expiring, "; ".join(notes))
            files = 0
            if expiring and not dry_run:
                rows, _, left = self._call(
                    f"expire_snapshots(table => {self._name}, older_than => {_moment(before)}, stream_results => true)",
                    lock,
                    deadline,
                )
                files += sum(
                    int(count or 0) for row in rows for name, count in row.items() if name.startswith("deleted")
                )
                notes += [f"snapshots: {left}"] if left else []
            orphans = datetime.now(UTC) - max(keep, ORPHAN_AGE)
            rows, _, left = self._call(
                f"remove_orphan_files(table => {self._name}, older_than => {_moment(orphans)}, "
                f"dry_run => {str(dry_run).lower()})",
                NoLock(),
                deadline,
            )
            notes += [f"orphans: {left}"] if left else []
            for folder, path in () if dry_run else staged:
                with suppress(OSError):
                    folder.remove(path)
            return Cleaned(files + len(rows) + len(staged), expiring, "; ".join(notes) or None)

    def _open(self) -> Table | None:
        return self._catalog_table.load()

    def _file_sizes(self, table: Table) -> list[list[int]]:
        found: dict[tuple[int, str], list[int]] = defaultdict(list)
        snapshot = table.current_snapshot()
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            if manifest.content == ManifestContent.DATA:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    file = entry.data_file
                    found[(manifest.partition_spec_id, repr(file.partition))].append(file.file_size_in_bytes)
        return list(found.values())

    def _versions(self, table: Table) -> int:
        return len(table.metadata.snapshots)

    def _rewrite(self, lock: MaintenanceLock, deadline: float) -> Compacted:
        options = {
            "target-file-size-bytes": self._target,
            "min-file-size-bytes": self._target // 2,
            "max-file-size-bytes": self._target * 9 // 5,
            "min-input-files": 2,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": 10,
        }
        listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        call = f"rewrite_data_files(table => {self._name}, {self._order()}options => map({listed}))"
        rows, gave_way, left = self._call(call, lock, deadline)
        removed = sum(int(row["rewritten_data_files_count"]) for row in rows)
        added = sum(int(row["added_data_files_count"]) for row in rows)
        failed = sum(int(row.get("failed_data_files_count") or 0) for row in rows)
        return Compacted(removed, added, gave_way, left or ("some files were changed concurrently" if failed else None))

    def _order(self) -> str:
        if not self._cluster_by:
            return ""
        columns = [quoted(column) for column in self._cluster_by]
        order = f"zorder({', '.join(columns)})" if len(columns) > 1 else f"{columns[0]} ASC NULLS LAST"
        return f"strategy => 'sort', sort_order => {literal(order)}, "

    def _call(self, call: str, lock: MaintenanceLock, deadline: float) -> tuple[list[dict[str, Any]], int, str | None]:
        return self._run(f"CALL {self._system}.{call}", self._settings, lock, deadline)

    def _failure(self, error: Exception) -> PenstockError | None:
        return None if is_conflict(error) else sink_failure(self._sink, COMPACTING, error)

    def _tagged(self, table: Table) -> Table:
        """The table once the newest position of every pipeline and sink has a tag: someone may have dropped it."""
        absent = {mark: own.snapshot for mark, own in _newest_held(table).items() if mark not in table.metadata.refs}
        for mark, snapshot in absent.items():
            self._engine.run(
                f"ALTER TABLE {self._catalog_table.spark_name} CREATE TAG IF NOT EXISTS {quoted(mark)} "
                f"AS OF VERSION {snapshot.snapshot_id} {RETAIN_TAG}",
                settings=self._settings,
            )
        return (self._open() or table) if absent else table


def _newest_held(table: Table) -> dict[str, OwnSnapshot]:
    """The newest commit that the table holds of every pipeline and sink, by the name of its tag."""
    found = {}
    for pipeline, sink in writers_of(table.metadata):
        if held := history_of(table.metadata, pipeline, sink).held:
            found[mark_of(pipeline, sink)] = held[0]
    return found


def _unsafe(table: Table) -> str | None:
    """Why no snapshot may expire: some pipeline's position, or the proof that it was taken out, would go with it."""
    metadata = table.metadata
    for pipeline, sink in sorted(writers_of(metadata)):
        history = history_of(metadata, pipeline, sink)
        who, mark = f"{pipeline}/{sink}", mark_of(pipeline, sink)
        tag = metadata.refs.get(mark)
        if history.lost is not None:
            return f"snapshots are left: a roll-back took commits of {who} out; start it first, or drop its tag {mark}"
        if not history.held:
            continue
        newest = history.held[0]
        if tag is None or tag.snapshot_id != newest.snapshot.snapshot_id:
            return f"snapshots are left: the newest position of {who} has no tag"
        if tag.max_ref_age_ms is None and _MAX_REF_AGE in metadata.properties:
            return f"snapshots are left: the table has {_MAX_REF_AGE}, which lets the tag of {who} go; start it first"
        if history.position != newest.position and pipeline == live_name(pipeline):
            return f"snapshots are left: only older ones name all partitions of {who}; start it first"
    return None


def _manifests(table: Table | None) -> int:
    snapshot = table.current_snapshot() if table is not None else None
    return len(snapshot.manifests(table.io)) if table is not None and snapshot is not None else 0


def _expiring(table: Table, before: datetime) -> int:
    """How many snapshots an expiry would take: old, and not named."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    limit = before.timestamp() * 1000
    return sum(1 for s in table.metadata.snapshots if s.timestamp_ms < limit and s.snapshot_id not in named)


def _forgotten(table: Table, age: timedelta, storage: Storage) -> Iterator[tuple[TableFolder, str]]:
    """Files staged next to the table that no commit will use any more."""
    folder = TableFolder(f"{table.location().rstrip('/')}/{STAGED}", storage)
    for path in folder.older("", ".parquet", datetime.now(UTC) - age):
        yield folder, path


def _moment(at: datetime) -> str:
    return f"TIMESTAMP '{at.strftime('%Y-%m-%d %H:%M:%S.%f')}'"
