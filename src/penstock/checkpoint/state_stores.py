"""The state in a checkpoint: its stores with their sizes, and what is missing for a batch to begin with it.

`state/OPERATOR/PARTITION/` holds one store, or several in folders of their own, as a join has them. Every partition of
every store writes a version in every batch; which there are Spark notes once, in `state/OPERATOR/_metadata`. Batch N
reads version N and writes version N+1. A store is loaded from its newest snapshot (`V.zip` of RocksDB, `V.snapshot`) at
or before the version, and every change (`V.changelog`, `V.delta`) after it. The file of a RocksDB snapshot names files
in `SSTs` that it needs.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any

from penstock.checkpoint.files import SparkCheckpoint
from penstock.storage import Storage

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


_STORE = re.compile(r"state/(\d+)/(\d+)/(?:([^_/.][^/]*)/)?[^/]+")
_NOTE = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/\d+)")
_PARTS = ("SSTs", "logs")
_ONLY_STORE = "default"


@dataclass(frozen=True)
class StateStore:
    """One store of one stateful step, over all partitions."""

    operator: int
    step: str
    """What Spark calls the step; empty where its note is gone."""
    name: str
    """Empty where the step has one store only."""
    partitions: int
    size_bytes: int
    files: int


@dataclass(frozen=True)
class StateFiles:
    """The files under `state`, by their names in the checkpoint."""

    path: str
    sizes: Mapping[str, int]
    noted: bool
    """Whether the checkpoint was begun by a pipeline with state."""
    steps: Mapping[int, str] = field(default_factory=dict)
    partitions: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """How many each store of an operator has, as Spark noted it."""
    storage: Storage = field(default_factory=Storage)

    @property
    def kept(self) -> bool:
        """Whether the checkpoint is one of a pipeline with state."""
        return self.noted or bool(self.stores)

    @property
    def newest(self) -> int | None:
        """The newest version that some store has."""
        return max((v for name in self.sizes if (v := state_version(name)) is not None), default=None)

    @cached_property
    def stores(self) -> tuple[StateStore, ...]:
        """Every store, in the order of the steps."""
        size, count, there = Counter[tuple[int, str]](), Counter[tuple[int, str]](), dict[tuple[int, str], set[int]]()
        for name, size_bytes in self.sizes.items():
            found = _place(name)
            if found is not None:
                operator, partition, store = found
                size[operator, store] += size_bytes
                count[operator, store] += not name.endswith(".crc")
                there.setdefault((operator, store), set()).add(partition)
        return tuple(
            StateStore(key[0], self.steps.get(key[0], ""), key[1], len(there[key]), size[key], count[key])
            for key in sorted(size)
        )

    def missing(self, version: int) -> list[str]:
        """What is not there, or empty, of what a batch needs that begins with this version, in words."""
        if version <= 0:
            return []
        places = {
            found for name in self.sizes if (found := _place(name)) is not None and state_version(name) is not None
        }
        expected = {(o, p, store) for (o, store), count in self.partitions.items() for p in range(count)}
        # Where a note is gone: what one partition has, the others have, and a pipeline with state has a first step.
        for operator, store in {(o, s) for o, _, s in places} - self.partitions.keys():
            highest = max(p for o, p, s in places if (o, s) == (operator, store))
            expected |= {(operator, p, store) for p in range(highest + 1)}
        if not expected:
            return ["state/0"]
        absent = ["/".join(filter(None, (f"state/{o}/{p}", s))) for o, p, s in sorted(expected - places)]
        whole = [name for name, size in self.sizes.items() if size > 0]
        return absent + [_named(name) for name in missing_state(whole, version, self._read)]

    def _read(self, name: str) -> bytes:
        filesystem, root = self.storage.filesystem(self.path)
        body: bytes = filesystem.cat_file(f"{root.rstrip('/')}/{name}")
        return body


def read_state(path: str, storage: Storage = Storage()) -> StateFiles:
    """List the state of a checkpoint."""
    filesystem, root = storage.filesystem(path)
    root = root.rstrip("/")
    found: dict[str, Any] = filesystem.find(f"{root}/state", detail=True)
    sizes = {str(name)[len(root) + 1 :]: int(about.get("size") or 0) for name, about in found.items()}
    noted = SparkCheckpoint(path, storage).state_noted()
    steps: dict[int, str] = {}
    partitions: dict[tuple[int, str], int] = {}
    for name in sorted(name for name in sizes if _NOTE.fullmatch(name)):
        operator = int(name.split("/")[1])
        try:
            _, _, text = filesystem.cat_file(f"{root}/{name}").decode().partition("\n")
            note = json.loads(text)
            steps[operator] = str(note["operatorInfo"]["operatorName"])
            for store in note["stateStoreInfo"]:
                own = "" if store["storeName"] == _ONLY_STORE else str(store["storeName"])
                partitions[operator, own] = int(store["numPartitions"])
        except (OSError, ValueError, KeyError, TypeError):
            # Spark does without the note; it only says what there should be.
            continue
    return StateFiles(path, sizes, noted is not None and noted.strip() not in ("", "[]"), steps, partitions, storage)


def version_needed(begun: int | None, committed: int | None) -> int:
    """The version that the next batch begins with: batch N reads version N."""
    if begun is None:
        return 0
    return begun + 1 if committed is not None and committed >= begun else begun


def _place(name: str) -> tuple[int, int, str] | None:
    """The operator, partition and store of a state file."""
    found = _STORE.match(name)
    if found is None:
        return None
    store = found[3] if found[3] not in _PARTS else None
    return int(found[1]), int(found[2]), store or ""


def _named(name: str) -> str:
    return name if "/SSTs/" in name else f"{name}.changelog"
