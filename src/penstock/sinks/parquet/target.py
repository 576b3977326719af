"""The batches of one pipeline's sink in a target: a numbered sequence of folders, each with a manifest.

A folder's name holds a mark of the pipeline and sink, and the number of the commit. Only one writer can make the folder
of a number, and it carries the position that the target then has. The batch with the greatest number is therefore the
target's position, and making the next folder is the compare-and-set. Version 0.7 named a folder by its query and batch;
those folders are read as long as there is no numbered one.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import MissingError, TerminalError
from penstock.model import BatchToken, Position
from penstock.sinks.files import TableFolder
from penstock.sinks.files.stage import StagedFile
from penstock.sinks.parquet.columns import BATCH_COLUMN, Columns

MANIFEST = "_manifest.json"
WRITERS = "_writers"
"""The folder with a file for each writer: a position that names every partition it ever committed."""

_PREFIX = f"{BATCH_COLUMN}="
_NUMBER = re.compile(r"[0-9]{12}")
_QUERY_AND_BATCH = re.compile(r"[0-9a-f]{12}-[0-9]{12}")


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """What differs between folders of one kind of file and of another. A folder holds one kind."""

    kind: str
    files: str
    """The names of the files, as a pattern."""
    columns_file: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch: its folder, the position it left, and its files within the folder."""

    name: str
    position: Position
    files: tuple[str, ...]


@dataclass(slots=True)
class Memory:
    """What this process read from a target and did to it. It saves requests, and proves nothing."""

    names: list[str] | None = None
    """The names that `newest_names` gave last."""
    names_at: tuple[int, int] | None = None
    """The state of the folder when the names were read."""
    earlier: dict[str, Batch] = field(default_factory=dict)
    """Batches of version 0.7, whose names are never used again."""
    landing: str | None = None
    """The folder that this process tried to make last."""
    finished: Batch | None = None
    """The newest batch that is known to be shown whole."""


class FolderTarget(ABC):
    """A target, as one pipeline's sink sees it."""

    def __init__(self, pipeline: str, sink: str, layout: FolderLayout, folder: TableFolder, staged: str) -> None:
        self._sink = sink
        self._folder = folder
        self._staged = staged
        """The folder with what is staged, outside the target."""
        self._layout = layout
        self._writer = _mark(f"{pipeline}/{sink}")
        self._begins = f"{_PREFIX}{self._writer}-"
        self._memory = Memory()

    def __getstate__(self) -> dict[str, Any]:
        # A position may be large, and tasks read none.
        return {**self.__dict__, "_memory": Memory()}

    def columns(self) -> Columns | None:
        """The columns of the target; none where Penstock did not write it."""
        body = self._folder.read(self._layout.columns_file)
        return Columns.from_footer(body) if body is not None else None

    def refuse_others(self) -> None:
        """Refuse a place with files of others, whose readers would see both."""
        if self.columns() is not None:
            return
        found = next((path for path in self._folder.all_files() if not path.startswith(f"{WRITERS}/")), None)
        if found is not None:
            raise MissingError(
                "SINK_PATH_NOT_A_TABLE",
                f"sink {self._sink}: the folder has files that no {self._layout.kind} sink wrote",
                context={"path": self._folder.uri, "found": found},
                hint="use an empty folder",
            )

    @abstractmethod
    def agree(self, merge: Callable[[Columns | None], Columns]) -> Columns:
        """Add columns to those of the target, atomically."""

    def staging(self, token: BatchToken) -> TableFolder:
        """Where the files of a batch are staged."""
        return self._folder.elsewhere(f"{self._staged}/{self._staged_label(token)}")

    @abstractmethod
    def files(self) -> tuple[TableFolder, list[str]]:
        """A folder, and every committed file of every writer, relative to it."""

    def position(self) -> Position | None:
        """The position of the target. A commit of this process that ended half-way is finished first."""
        newest = self._newest()
        if newest is not None and newest.name == self._memory.landing:
            self._finish_once(newest)
        return self._position_of(newest)

    def land(self, position: Position, files: Sequence[StagedFile], columns: Columns, onto: Position | None) -> None:
        """Commit a batch. Raises `FileExistsError` where the target is not at `onto`."""
        newest = self._newest()
        if self._position_of(newest) != onto:
            raise FileExistsError("another position")
        if newest is not None:
            self._finish_once(newest)
        name = f"{self._begins}{position.number:012}"
        self._memory.landing = name
        try:
            self._publish(name, position.last, files, self._manifest(position, files, columns))
        except FileExistsError:
            self._memory.names = None
            raise
        self._finish_once(Batch(name, position, tuple(file.path for file in files)))
        if onto is None or _trace_of(position) != _trace_of(onto):
            self._note(position)

    def settle(self) -> None:
        """At a start: finish what a crash left half done."""
        newest = self._newest()
        if newest is None:
            return
        self._finish_once(newest)
        noted = self._noted()
        if noted is None or _trace_of(noted) != _trace_of(newest.position):
            self._note(newest.position)

    @abstractmethod
    def clear(self, token: BatchToken) -> None:
        """Remove what is staged for a batch that is committed and shown whole."""

    def other_writers(self) -> list[str]:
        """The other pipelines and sinks that have batches here."""
        one_each: dict[str, str] = {}
        for name in self._folder.names():
            if name.startswith(_PREFIX) and not name.startswith(self._begins):
                one_each[name.removeprefix(_PREFIX).partition("-")[0]] = name
        found = []
        for name, body in self._bodies(list(one_each.values())).items():
            manifest = self._parsed(name, body)
            # Version 0.7 did not store the sink's name.
            found.append(f"{manifest['token']['pipeline']}/{manifest.get('sink', '?')}")
        return sorted(found)

    @abstractmethod
    def _newest_names(self) -> list[str]:
        """What `newest_names` gives for the target, without reading all names where this process knows some."""

    @abstractmethod
    def _write(self, path: str, body: bytes) -> None:
        """Make or replace a small file of the target."""

    @abstractmethod
    def _publish(self, name: str, token: BatchToken, files: Sequence[StagedFile], manifest: bytes) -> None:
        """Make the folder of a batch, where none is. `FileExistsError` where one is."""

    @abstractmethod
    def _finish(self, batch: Batch) -> None:
        """Show a committed batch whole, and clear what was staged for it."""

    def _bodies(self, names: Sequence[str]) -> Mapping[str, bytes | None]:
        """The manifests of some batches."""
        return {name: self._folder.read(f"{name}/{MANIFEST}") for name in names}

    def _finish_once(self, batch: Batch) -> None:
        if self._memory.finished != batch:
            self._finish(batch)
            self._memory.finished = batch

    def _newest(self) -> Batch | None:
        """The newest batch."""
        memory = self._memory
        names = self._newest_names()
        bodies = self._bodies([name for name in names if name not in memory.earlier])
        if None in bodies.values():
            # Removed since the names were read.
            memory.names, memory.names_at = None, None
            names = self._newest_names()
            bodies = self._bodies([name for name in names if name not in memory.earlier])
        batches = [memory.earlier[name] for name in names if name in memory.earlier]
        for name, body in bodies.items():
            batch = self._batch(name, body)
            batches.append(batch)
            if not is_numbered(name, self._begins):
                memory.earlier[name] = batch
        if not batches:
            return None
        newest, *older = sorted(batches, key=lambda batch: (batch.position.number, batch.name), reverse=True)
        # Version 0.7 stored the last batch alone: partitions that it does not name are found in older ones.
        return replace(newest, position=Position.united(newest.position, [batch.position for batch in older]))

    def _position_of(self, newest: Batch | None) -> Position | None:
        if newest is not None:
            return newest.position
        lost = self._noted()
        return Position.nothing_left(lost) if lost is not None else None

    def _batch(self, name: str, body: bytes | None) -> Batch:
        manifest = self._parsed(name, body)
        try:
            position = replace(Position.from_body(manifest["token"]), number=int(manifest["number"]))
            return Batch(name, position, tuple(str(file["path"]) for file in manifest["files"]))
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(f"{name}/{MANIFEST}", error) from error

    def _parsed(self, name: str, body: bytes | None) -> dict[str, Any]:
        try:
            if body is None:
                raise FileNotFoundError("no such file")
            manifest: dict[str, Any] = json.loads(body)
        except (FileNotFoundError, ValueError) as error:
            raise self._unreadable(f"{name}/{MANIFEST}", error) from error
        return manifest

    def _unreadable(self, file: str, error: Exception) -> TerminalError:
        return TerminalError(
            "SINK_MANIFEST_UNREADABLE",
            f"sink {self._sink}: reading the manifest of a batch: {error}",
            context={"manifest": file},
            hint="put the file back; without it the offsets of the batch are unknown",
        )

    def _manifest(self, position: Position, files: Sequence[StagedFile], columns: Columns) -> bytes:
        manifest = {
            "version": 1,
            "token": json.loads(position.to_json()),
            "number": position.number,
            "sink": self._sink,
            "rows": sum(file.rows for file in files),
            "files": [{"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes} for file in files],
            "columns": {field.name: str(field.type) for field in [*columns.files, *columns.partitions]},
            "partition_by": columns.partitions.names,
        }
        return json.dumps(manifest, indent=1).encode()

    def _staged_label(self, token: BatchToken) -> str:
        """The name of what is staged for a batch: the same for each of its attempts, and for no other batch."""
        return f"{self._writer}-{_mark(token.query_id)}-{token.batch_id:012}"

    def _note(self, position: Position) -> None:
        self._write(f"{WRITERS}/{self._writer}.json", position.to_json().encode())

    def _noted(self) -> Position | None:
        """A position of this writer, even if all its batches are gone."""
        body = self._folder.read(f"{WRITERS}/{self._writer}.json")
        if body is None:
            return None
        try:
            return Position.from_json(body.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(f"{WRITERS}/{self._writer}.json", error) from error


def newest_names(names: Iterable[str], begins: str) -> list[str]:
    """The folder with the greatest number; where there is none, all folders of version 0.7."""
    own = [name for name in names if name.startswith(begins)]
    numbered = max((name for name in own if is_numbered(name, begins)), default=None)
    if numbered is not None:
        return [numbered]
    return [name for name in own if _QUERY_AND_BATCH.fullmatch(name.removeprefix(begins))]


def is_numbered(name: str, begins: str) -> bool:
    """Whether a folder is one of the sequence."""
    return name.startswith(begins) and _NUMBER.fullmatch(name.removeprefix(begins)) is not None


def _trace_of(position: Position) -> tuple[object, ...]:
    """What must be known about a writer whose batches are all gone."""
    return set(position.next), position.topic_ids


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
