"""The batches of a target: their folders, named so that one listing tells which there are, and their manifests.

A folder's name holds a mark of the pipeline and sink, a mark of the query, and the batch id: who committed how far
is known from the names, and only the newest manifest of each query is ever opened. The folder itself is listed again
only where something was changed in it that was not this sink's own, and in an object store only behind the names that
are known: else each commit would cost more than the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.parquet.columns import BATCH_COLUMN, Columns, beside
from penstock.sinks.parquet.stage import StagedFile

MANIFEST = "_manifest.json"

_QUERY_AND_BATCH = re.compile(r"([0-9a-f]{12})-[0-9]{12}")


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch as its manifest tells it. `number` counts the commits of a pipeline's sink, whatever the query."""

    token: BatchToken
    number: int


class Batches:
    """The batches of one pipeline's sink at a path. Manifests never change: those that were read are kept."""

    def __init__(self, root: Path | None, pipeline: str, sink: str) -> None:
        self._root = root or Path()
        self._sink = sink
        self._writer = _mark(f"{pipeline}/{sink}")
        self._own = f"{BATCH_COLUMN}={self._writer}-"
        self._read: dict[str, CommittedBatch] = {}
        self._listed: dict[str, str] = {}
        self._listed_at: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A token may be large, and tasks read none.
        return {**self.__dict__, "_read": {}, "_listed": {}, "_listed_at": None}

    def label(self, token: BatchToken) -> str:
        """The value of `penstock_batch`: distinct for each batch of each query, ordered by batch within a query."""
        return f"{self._writer}-{_mark(token.query_id)}-{token.batch_id:012}"

    def folder(self, token: BatchToken) -> Path:
        """Where the batch is once it is committed."""
        return self._root / self._name(token)

    def staging(self, token: BatchToken) -> Path:
        """Where the batch's files are staged."""
        return beside(self._root) / "staged" / self.label(token)

    def find(self, token: BatchToken) -> CommittedBatch | None:
        """The batch of this query and id, if it is there."""
        folder = self.folder(token)
        return self._manifest(folder.name) if folder.is_dir() else None

    def newest_id(self, query_id: str) -> int | None:
        """The greatest batch id of a query."""
        found = self._newest_by_query().get(_mark(query_id))
        return None if found is None else int(found.rpartition("-")[2])

    def newest(self) -> CommittedBatch | None:
        """The last commit, whichever query made it."""
        self._read = {name: self._manifest(name) for name in self._newest_by_query().values()}
        return max(self._read.values(), key=lambda batch: batch.number, default=None)

    def gathering(self, token: BatchToken) -> Path:
        """A new name for the folder in which a batch is put together."""
        return beside(self._root) / "gathered" / f"{self.label(token)}-{secrets.token_hex(4)}"

    def gather(self, gathered: Path, token: BatchToken, files: Sequence[StagedFile], columns: Columns) -> None:
        """Make the folder with the staged files and the manifest in it, durable and still out of sight."""
        newest = self.newest()
        gathered.mkdir(parents=True)
        folders = {gathered}
        for file in files:
            target = gathered / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            # A link, not a move: whatever happens next, the staged file is there for another try.
            os.link(self.staging(token) / file.path, target)
            folders.update(gathered / parent for parent in Path(file.path).parents)
        body = manifest_of(token, files, columns, newest.number + 1 if newest else 1)
        with (gathered / MANIFEST).open("wb") as handle:
            handle.write(body)
            handle.flush()
            os.fsync(handle.fileno())
        sync_folders(folders)

    def publish(self, gathered: Path, token: BatchToken) -> None:
        """Make the batch visible. Fails where its folder is there: a folder with something in it is not replaced."""
        before = self._state()
        gathered.rename(self.folder(token))
        after = self._state()
        # One folder more is this one; of two the other is somebody else's.
        if before is not None and after is not None and before == self._listed_at and after[1] - before[1] <= 1:
            self._note(self._name(token), self._listed)
            self._listed_at = after
        sync_folders([self._root])

    def clear(self, token: BatchToken) -> None:
        """Remove everything that is staged or gathered for a batch."""
        shutil.rmtree(self.staging(token), ignore_errors=True)
        for left in (beside(self._root) / "gathered").glob(f"{self.label(token)}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _newest_by_query(self) -> dict[str, str]:
        """For each query of this pipeline's sink the name of its newest batch."""
        state = self._state()
        if state is not None and state == self._listed_at:
            return self._listed
        newest: dict[str, str] = {}
        for name in self._names():
            self._note(name, newest)
        # Asked before: whatever came while the names were read shows at the next look.
        self._listed, self._listed_at = newest, state
        return newest

    def _note(self, name: str, newest: dict[str, str]) -> str:
        """The newest name of a batch's query, this one counted; empty where the name is no batch of this sink's."""
        found = _QUERY_AND_BATCH.fullmatch(name.removeprefix(self._own)) if name.startswith(self._own) else None
        if found is None:
            return ""
        newest[found[1]] = max(name, newest.get(found[1], ""))
        return newest[found[1]]

    def _name(self, token: BatchToken) -> str:
        return f"{BATCH_COLUMN}={self.label(token)}"

    def _manifest(self, name: str) -> CommittedBatch:
        if name not in self._read:
            try:
                body = self._body(name)
                if body is None:
                    raise FileNotFoundError("it is not there")
                token = BatchToken.from_json(json.dumps(body["token"]))
                self._read[name] = CommittedBatch(token, int(body["number"]))
            except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
                raise self._unreadable(f"{name}/{MANIFEST}", error) from error
        return self._read[name]

    def _unreadable(self, file: str, error: Exception) -> TerminalError:
        return TerminalError(
            "SINK_MANIFEST_UNREADABLE",
            f"sink {self._sink}: reading the manifest of a batch: {error}",
            context={"manifest": file},
            hint="put the file back; without it nobody knows which offsets the batch holds",
        )

    def _state(self) -> tuple[int, int] | None:
        """When something was last put into the target or taken out, and its links, of which each folder is one: the
        clock of a file system may tick slower than commits come. None where that is not told."""
        try:
            found = self._root.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_nlink

    def _names(self) -> list[str]:
        """What is in the target, by its names."""
        try:
            with os.scandir(self._root) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []

    def _body(self, name: str) -> dict[str, Any] | None:
        """What the manifest of a batch says; none where there is none."""
        try:
            body: dict[str, Any] = json.loads((self._root / name / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return body


def manifest_of(token: BatchToken, files: Sequence[StagedFile], columns: Columns, number: int) -> bytes:
    """The manifest of a batch."""
    manifest = {
        "version": 1,
        "token": json.loads(token.to_json()),
        "number": number,
        "rows": sum(file.rows for file in files),
        "files": [{"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes} for file in files],
        "columns": {field.name: str(field.type) for field in [*columns.files, *columns.partitions]},
        "partition_by": columns.partitions.names,
    }
    return json.dumps(manifest, indent=1).encode()


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders survive a power failure."""
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
