"""Spark's state files by their names: which version each belongs to, and what is missing for a version to be loaded.

Batch N reads version N and writes version N+1. A store is loaded from its newest snapshot (`V.zip` of RocksDB,
`V.snapshot`) at or before the version, and every change (`V.changelog`, `V.delta`) after it. The file of a RocksDB
snapshot names files in `SSTs` that it needs.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable
from io import BytesIO

# With state store checkpoint ids (format 2) a version's files carry an id of their own behind the number.
_VERSIONED = re.compile(
    r"(?P<store>state/(?:.+/)?)(?P<version>\d+)(?P<id>_[^./]+)?\.(?P<kind>zip|snapshot|changelog|delta)"
)
_SNAPSHOTS = ("zip", "snapshot")
_OF_BATCH = re.compile(r"state/\d+/_metadata/v2/(\d+)")


def state_version(name: str) -> int | None:
    """The version that a state file belongs to; None for those that are of all versions."""
    # Spark's own checksum of a state file, where it is set to keep one.
    found = _VERSIONED.fullmatch(name.removesuffix(".crc"))
    if found is not None:
        return int(found["version"])
    of_batch = _OF_BATCH.fullmatch(name)
    return int(of_batch[1]) + 1 if of_batch is not None else None


def missing_state(names: Iterable[str], version: int, read: Callable[[str], bytes]) -> list[str]:
    """What is not there of the files that a version needs, in words; `read` gives the bytes of a file."""
    there = set(names)
    stores: dict[str, list[tuple[int, str, str]]] = {}
    for name in there:
        found = _VERSIONED.fullmatch(name)
        if found is not None:
            stores.setdefault(found["store"], []).append((int(found["version"]), found["kind"], name))
    missing = []
    for store, files in sorted(stores.items()):
        whole = [(number, name) for number, kind, name in files if kind in _SNAPSHOTS and number <= version]
        base, snapshot = max(whole, default=(0, None))
        changes = {number for number, kind, _ in files if kind not in _SNAPSHOTS}
        missing += [f"{store}{n}" for n in range(base + 1, version + 1) if n not in changes]
        if snapshot is not None and snapshot.endswith(".zip"):
            missing += [file for file in (f"{store}SSTs/{sst}" for sst in _ssts(read(snapshot))) if file not in there]
    return missing


def _ssts(snapshot: bytes) -> list[str]:
    """The files in `SSTs` that a RocksDB snapshot consists of."""
    try:
        with zipfile.ZipFile(BytesIO(snapshot)) as packed:
            body = json.loads(packed.read("metadata").decode().partition("\n")[2])
    except (zipfile.BadZipFile, KeyError, ValueError):
        return ["(its list cannot be read)"]
    return [one["dfsSstFileName"] for one in body.get("sstFiles", ()) if "dfsSstFileName" in one]
