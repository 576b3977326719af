"""The process that rewrites a table's files: orders come in as lines of JSON, and the outcome of each goes out as one.

delta-rs cannot be interrupted inside a process, but a process can be killed at any moment. What it had not committed is
then files that no version names, which a clean-up removes. It is run by its path, so that only delta-rs is imported.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

from deltalake import CommitProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

MARK = "penstock.compaction"
"""Marks the commits of one compaction in the log."""

_SPILL_BYTES = 512 * 1024 * 1024
_COMMIT_SECONDS = 1


def join(table: DeltaTable, order: dict[str, Any]) -> dict[str, Any]:
    """Rewrite small files, of one partition or of all, with a commit for each second of work."""
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
    except Exception as error:  # the other process reports it
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
