"""Entries of a table's log that Penstock writes itself: an append of files, and a commit that takes others out.

delta-rs knows a table by all of its files, and so an append to many takes long; for a replacement it has no call, and
both it and Spark take any append that lands meanwhile for a conflict with a replacement by a condition on data: beside
a stream that commits every second neither would ever get through. A commit that names its files needs no such care.
The entry gets the next version's name, which only one writer can give it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from penstock.sinks.delta.stage import StagedFile
from penstock.sinks.files import TableFolder

_AS_THEY_ARE = "/!$&'()+,-.:;=@_~"
"""The characters that delta-rs leaves in a path: a later remove must have the very text of the add."""


def replacement_entry(
    metadata: Mapping[str, object],
    transactions: Mapping[str, int],
    condition: str,
    removed: Sequence[str],
    added: Sequence[StagedFile],
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
    added: Sequence[StagedFile] = (),
    partition_by: Sequence[str] = (),
) -> str:
    """The lines of a commit that adds files, or none, and disturbs nobody."""
    return _lines(_head(metadata, transactions, {"mode": "Append"}), _adds(added, partition_by))


def entry_path(version: int) -> str:
    """Where in the table's folder the entry of a version is."""
    return f"_delta_log/{version:020}.json"


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
            # No two are alike: a writer who gets no answer can tell by it whether the entry that is there is its own.
            "txnId": secrets.token_hex(16),
            **metadata,
        }
    }
    for name, version in transactions.items():
        yield {"txn": {"appId": name, "version": version, "lastUpdated": now}}


def _adds(added: Sequence[StagedFile], partition_by: Sequence[str]) -> Iterator[Mapping[str, Any]]:
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


def _lines(*parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(
        f"{json.dumps(action, separators=(',', ':'), ensure_ascii=False)}\n" for actions in parts for action in actions
    )
