"""Small files of several slots joined into one a partition, on the driver, before the commit names them.

Only where it is cheap: few files, little in them, on a local disk. What is left small is for a compaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.model import Manifest, SlotAttempt
from penstock.sinks.files.folder import TableFolder

JOINED_BYTES = 4 * 1024 * 1024
JOINED_ROWS = 20_000
JOINED_PARTITIONS = 8
"""How much of a batch is joined at most, so that it takes less than 50 ms: 1,000 rows of two slots took 5, 20,000 rows
25, and each partition takes 4."""

JOINER = SlotAttempt(999_999_998, "joined")
"""Who joins: no slot of a batch has this number."""


class DataFile(Protocol):
    """A staged file, as far as it matters here."""

    @property
    def path(self) -> str:
        """Inside the folder."""
        ...

    @property
    def size_bytes(self) -> int:
        """As it lies there."""
        ...

    @property
    def rows(self) -> int:
        """How many it has."""
        ...


class JoiningStage(Protocol):
    """A stage that takes the rows of the files again."""

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of the files."""
        ...

    def finish(self) -> Manifest:
        """As of `contracts.Stage`."""
        ...

    def abort(self) -> None:
        """As of `contracts.Stage`."""
        ...


File = TypeVar("File", bound=DataFile)
Stage = TypeVar("Stage", bound=JoiningStage)


class JoinedFiles(Generic[File, Stage]):
    """The files of one batch, joined once, when they are first asked for; those they came from are then removed."""

    def __init__(
        self,
        folder: TableFolder,
        files: Sequence[File],
        target_file_bytes: int,
        partition: Callable[[File], Hashable],
        begin: Callable[[], Stage],
        write: Callable[[Stage, File, pa.RecordBatch], object],
    ) -> None:
        self._folder = folder
        self._files = list(files)
        self._begin = begin
        self._write = write
        self._groups = _groups(files, partition, target_file_bytes) if folder.local is not None else []
        self._joined: list[File] | None = None

    def files(self) -> list[File]:
        """What the commit names."""
        if self._joined is None:
            self._joined = self._join() if self._groups else self._files
        return self._joined

    def remove_sources(self) -> None:
        """After the commit: the files that were joined are named by nobody."""
        if self._joined is not None and self._groups:
            for path in self._sources():
                self._folder.remove(path)

    def _join(self) -> list[File]:
        root = self._folder.local
        assert root is not None
        stage = self._begin()
        try:
            for group in self._groups:
                for rows in _rows(root, [file.path for file in group], stage.file_schema):
                    self._write(stage, group[0], rows)
            kind = type(self._files[0])
            made = [item for item in stage.finish().items if isinstance(item, kind)]
        except BaseException:
            stage.abort()
            raise
        sources = self._sources()
        return [*(file for file in self._files if file.path not in sources), *made]

    def _sources(self) -> set[str]:
        return {file.path for group in self._groups for file in group}


def _groups(files: Sequence[File], partition: Callable[[File], Hashable], target: int) -> list[list[File]]:
    """The files that are better one, by partitions: those of most files first, as many as do not take too long."""
    groups: dict[Hashable, list[File]] = defaultdict(list)
    for file in files:
        groups[partition(file)].append(file)
    chosen: list[list[File]] = []
    room, rows = min(JOINED_BYTES, target), JOINED_ROWS
    for group in sorted(groups.values(), key=len, reverse=True):
        size, count = sum(file.size_bytes for file in group), sum(file.rows for file in group)
        if len(group) > 1 and size <= room and count <= rows and len(chosen) < JOINED_PARTITIONS:
            chosen.append(group)
            room, rows = room - size, rows - count
    return chosen


def _rows(root: Path, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    files = [str(root / path) for path in paths]
    # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
    yield from ds.dataset(files, schema=schema, format="parquet").to_batches(use_threads=False)
