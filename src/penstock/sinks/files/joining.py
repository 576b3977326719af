"""Small files of several slots joined into one per partition, on the driver, before the commit names them.

Only where it is cheap: few small files on a local disk. The other small files are left to compaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from penstock.model import SlotAttempt
from penstock.sinks.files.folder import TableFolder
from penstock.sinks.files.stage import DataFileStage, StagedFile

JOINED_BYTES = 4 * 1024 * 1024
JOINED_ROWS = 20_000
JOINED_PARTITIONS = 8
"""Limits of what is joined per batch, so that it takes less than 50 ms: 1,000 rows of two slots took 5 ms, 20,000 rows
25 ms, and each partition takes 4 ms."""

JOINER = SlotAttempt(999_999_998, "joined")
"""The writer of joined files: no slot of a batch has this number."""

File = TypeVar("File", bound=StagedFile)


class JoinedFiles(Generic[File]):
    """The files of one batch, joined on the first call of `files`. The originals are removed after the commit."""

    def __init__(
        self,
        folder: TableFolder,
        files: Sequence[File],
        target_file_bytes: int,
        partition: Callable[[File], tuple[Any, ...]],
        begin: Callable[[], DataFileStage],
    ) -> None:
        self._folder = folder
        self._files = list(files)
        self._partition = partition
        self._begin = begin
        self._groups = self._worth_joining(target_file_bytes) if folder.local is not None else []
        self._joined: list[File] | None = None

    def files(self) -> list[File]:
        """The files that the commit names."""
        if self._joined is None:
            self._joined = self._join() if self._groups else self._files
        return self._joined

    def remove_originals(self) -> None:
        """After the commit: remove the files that were joined."""
        if self._joined is not None:
            for path in self._originals():
                self._folder.remove(path)

    def _join(self) -> list[File]:
        stage = self._begin()
        try:
            for group in self._groups:
                # Without threads: Arrow's own, left running at the end of a process, have aborted it.
                rows = self._folder.dataset([file.path for file in group], stage.file_schema)
                for batch in rows.to_batches(use_threads=False):
                    stage.add(self._partition(group[0]), batch)
            kind = type(self._files[0])
            joined = [item for item in stage.finish().items if isinstance(item, kind)]
        except BaseException:
            stage.abort()
            raise
        originals = self._originals()
        return [*(file for file in self._files if file.path not in originals), *joined]

    def _originals(self) -> set[str]:
        return {file.path for group in self._groups for file in group}

    def _worth_joining(self, target_file_bytes: int) -> list[list[File]]:
        """The groups of files to join, by partition: those of most files first, within the limits."""
        groups: dict[Hashable, list[File]] = defaultdict(list)
        for file in self._files:
            groups[self._partition(file)].append(file)
        chosen: list[list[File]] = []
        bytes_left, rows_left = min(JOINED_BYTES, target_file_bytes), JOINED_ROWS
        for group in sorted(groups.values(), key=len, reverse=True):
            size, rows = sum(file.size_bytes for file in group), sum(file.rows for file in group)
            if len(group) > 1 and size <= bytes_left and rows <= rows_left and len(chosen) < JOINED_PARTITIONS:
                chosen.append(group)
                bytes_left, rows_left = bytes_left - size, rows_left - rows
        return chosen
