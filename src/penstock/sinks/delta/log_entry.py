"""A commit that takes files out of a table and puts others in, written to the log of a table on a local disk.

delta-rs has no call for that, and both it and Spark take any append that lands meanwhile for a conflict with a
replacement by a condition on data: beside a stream that commits every second neither would ever get through. A commit
that names its files needs no such care. The entry is linked to the next version's name, which only one writer can.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.model import BatchToken
from penstock.sinks.delta.history import commit_metadata
from penstock.sinks.delta.stage import StagedFile

_AS_THEY_ARE = "/!$&'()+,-.:;=@_~"
"""The characters that delta-rs leaves in a path: a later remove must have the very text of the add."""


def replacement_entry(
    token: BatchToken,
    sink: str,
    app_id: str,
    condition: str,
    removed: Sequence[str],
    added: Sequence[StagedFile],
    partition_by: Sequence[str],
) -> str:
    """The lines of the commit. `removed` are paths as the log has them."""
    return "".join(
        f"{json.dumps(action, separators=(',', ':'), ensure_ascii=False)}\n"
        for action in _actions(token, sink, app_id, condition, removed, added, partition_by)
    )


def put_entry(root: Path, version: int, entry: str) -> bool:
    """Make the entry the table's next version; false where another writer was first."""
    log = root / "_delta_log"
    fresh = log / f".penstock-{secrets.token_hex(8)}.tmp"
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write(entry)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, log / f"{version:020}.json")
        except FileExistsError:
            return False
        return True
    finally:
        fresh.unlink(missing_ok=True)


def _actions(
    token: BatchToken,
    sink: str,
    app_id: str,
    condition: str,
    removed: Sequence[str],
    added: Sequence[StagedFile],
    partition_by: Sequence[str],
) -> Iterator[Mapping[str, Any]]:
    now = int(time.time() * 1000)
    yield {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite", "predicate": condition},
            "engineInfo": "penstock",
            "isBlindAppend": False,
            **commit_metadata(token, sink),
        }
    }
    yield {"txn": {"appId": app_id, "version": token.batch_id, "lastUpdated": now}}
    for path in removed:
        yield {"remove": {"path": path, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": False}}
    for file in added:
        action = file.to_action(partition_by)
        yield {
            "add": {
                "path": quote(action.path, safe=_AS_THEY_ARE),
                "partitionValues": dict(action.partition_values),
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": True,
                "stats": action.stats,
            }
        }
