"""The process that rewrites a table's files: orders come in as lines of JSON, and the outcome of each goes out as one.

delta-rs cannot be broken off inside a process; a process can be ended at any moment. Then what it had not committed is
files that no version names, which a clean-up takes. It is run by its path, so that nothing but delta-rs is imported.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from deltalake import CommitProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from penstock.contracts import MaintenanceLock, SqlEngine
from penstock.errors import TerminalError
from penstock.model.upkeep import Cleaned, Compacted
from penstock.sinks.compaction_chunks import run_chunk
from penstock.sinks.delta.failures import EngineError, engine_errors, is_conflict, sink_failure
from penstock.sinks.delta.names import quoted, table_name
from penstock.sinks.files import TableFolder

MARK = "penstock.compaction"
"""What tells the commits of one compaction from others in the log."""

_SPILL_BYTES = 512 * 1024 * 1024
_COMMIT_SECONDS = 1


def join(table: DeltaTable, order: dict[str, Any]) -> dict[str, Any]:
    """Rewrite small files, of one partition or of all, each second's work committed for itself."""
    settings: dict[str, Any] = {
        "partition_filters": [tuple(one) for one in order["filters"]] or None,
        "target_size": order["target"],
        "max_concurrent_tasks": max(1, (os.cpu_count() or 1) // 2),
        "max_spill_size": _SPILL_BYTES,
        "min_commit_interval": timedelta(seconds=_COMMIT_SECONDS),
        "writer_properties": WriterProperties(compression="ZSTD", compression_level=1),
        "commit_properties": CommitProperties(custom_metadata={MARK: order["mark"]}),
    }
    try:
        table.update_incremental()
        if order["columns"]:
            table.optimize.z_order(order["columns"], **settings)
        else:
            table.optimize.compact(**settings)
    except CommitFailedError as error:
        return {"outcome": "conflict", "message": str(error)}
    except Exception as error:  # whatever it is, the other process tells it
        return {"outcome": "failure", "message": f"{type(error).__name__}: {error}"}
    return {"outcome": "done", "message": ""}


def main() -> None:
    """Open the table, say so, and take orders until there are no more."""
    os.nice(5)
    first = json.loads(sys.stdin.readline())
    table = DeltaTable(first["path"], storage_options=first["options"] or None)
    _say({"outcome": "ready", "message": ""})
    for line in sys.stdin:
        _say(join(table, json.loads(line)))


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()


# The care of a Delta table that asks more of its writers than delta-rs can give: Spark's OPTIMIZE and VACUUM.

_DELTA = "spark.databricks.delta"
_TRIES = 3


class SparkCare:
    """OPTIMIZE and VACUUM of one table, through the engine."""

    def __init__(self, sink: str, folder: TableFolder, target_file_bytes: int, cluster_by: Sequence[str]) -> None:
        self._sink = sink
        self._name = table_name(folder)
        self._target = target_file_bytes
        self._cluster_by = tuple(cluster_by)
        self._sql: SqlEngine | None = None
        self._interrupt: Callable[[], None] = lambda: None

    def use(self, sql: SqlEngine, interrupt: Callable[[], None]) -> None:
        """The engine, and how to break off what it runs."""
        self._sql, self._interrupt = sql, interrupt

    def compact(self, table: DeltaTable, lock: MaintenanceLock, deadline: float) -> Compacted:
        """One OPTIMIZE, which commits part by part; broken off when the stream wants the table, and tried again."""
        engine, statement = self._engine(), f"OPTIMIZE {self._name}"
        if self._cluster_by:
            statement += f" ZORDER BY ({', '.join(map(quoted, self._cluster_by))})"
        settings = {
            f"{_DELTA}.optimize.maxFileSize": str(self._target),
            f"{_DELTA}.optimize.minFileSize": str(self._target // 2),
            f"{_DELTA}.optimize.batchSize": str(4 * self._target),
        }

        def run() -> None:
            with engine_errors():
                engine.run(statement, settings=settings)

        before, gave_way = table.version(), 0
        left: str | None = "the stream left no room for it"
        for _ in range(_TRIES):
            found = run_chunk(run, self._interrupt, lock, deadline)
            if found.ended == "done":
                left = None
                break
            if found.ended == "time":
                left = "the time was up"
                break
            error = found.error or EngineError(found.reason)
            if found.ended == "failure" and not is_conflict(error):
                raise sink_failure(self._sink, "compacting the table", error) from error
            gave_way += 1
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
        table.update_incremental()
        removed, added = _optimized(table, before)
        return Compacted(removed, added, gave_way, left)

    def clean(self, table: DeltaTable, keep: timedelta, *, dry_run: bool) -> Cleaned:
        """One VACUUM, if there is something for it to remove."""
        if dry_run and self._sql is None:
            return Cleaned(note="what VACUUM would remove is known to Spark alone")
        statement = f"VACUUM {self._name} RETAIN {math.ceil(keep / timedelta(hours=1))} HOURS"
        settings = {
            f"{_DELTA}.retentionDurationCheck.enabled": "false",
            # By default VACUUM lists a folder in 10,000 tasks: two minutes for four files.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        }
        try:
            with engine_errors():
                found = len(self._engine().run(f"{statement} DRY RUN", settings=settings))
                if found and not dry_run:
                    self._engine().run(statement, settings=settings)
        except EngineError as error:
            raise sink_failure(self._sink, "cleaning the table up", error) from error
        return Cleaned(found)

    def _engine(self) -> SqlEngine:
        if self._sql is None:
            raise TerminalError("SINK_NEEDS_SPARK", f"sink {self._sink}: the care of the table was given no SQL engine")
        return self._sql


def _optimized(table: DeltaTable, before: int) -> tuple[int, int]:
    """How many files OPTIMIZE removed and added since a version."""
    entries = [e for e in table.history(max(1, table.version() - before)) if e["version"] > before]
    figures = [e.get("operationMetrics", {}) for e in entries if e.get("operation") == "OPTIMIZE"]
    removed, added = ([int(f.get(n, 0)) for f in figures] for n in ("numRemovedFiles", "numAddedFiles"))
    return sum(removed), sum(added)
