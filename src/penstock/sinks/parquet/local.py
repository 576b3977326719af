"""A target on a local disk: batches put together outside it, and made visible by one rename each."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import MissingError
from penstock.model import BatchToken
from penstock.sinks.files import TableFolder
from penstock.sinks.files.folder import fsync
from penstock.sinks.files.stage import StagedFile
from penstock.sinks.parquet.columns import BATCH_COLUMN, Columns
from penstock.sinks.parquet.target import MANIFEST, WRITERS, Batch, FolderLayout, FolderTarget, newest_names


class LocalTarget(FolderTarget):
    """A folder."""

    def __init__(self, sink: str, root: Path, pipeline: str, layout: FolderLayout) -> None:
        self._root = root
        super().__init__(pipeline, sink, layout, TableFolder(str(root)), str(private_folder(root) / "staged"))

    def refuse_others(self) -> None:
        """Refuse a folder with files of others, and a mount point: nothing can be renamed into it."""
        root = self._root
        if root.is_mount():
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self._sink}: a batch is renamed into the folder from next to it, and this one is a mount point",
                context={"path": root},
                hint="use a folder below it",
            )
        super().refuse_others()

    def agree(self, merge: Callable[[Columns | None], Columns]) -> Columns:
        """Add columns to those of the target, under a lock that keeps other pipelines from changing them meanwhile."""
        root, private = self._root, private_folder(self._root)
        for folder in (root, private):
            folder.mkdir(parents=True, exist_ok=True)
        with (private / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = self.columns()
            agreed = merge(held)
            if agreed != held:
                written = private / self._layout.columns_file
                _write_durably(written, agreed.to_footer())
                written.rename(root / self._layout.columns_file)
                (root / WRITERS).mkdir(exist_ok=True)
                for folder in (root, root.parent):
                    fsync(folder)
        return agreed

    def files(self) -> tuple[TableFolder, list[str]]:
        """The target, and every file in it."""
        batches = self._root.glob(f"{BATCH_COLUMN}=*")
        found = (path for batch in batches for path in batch.rglob(self._layout.files))
        return self._folder, sorted(path.relative_to(self._root).as_posix() for path in found)

    def clear(self, token: BatchToken) -> None:
        """Remove everything that is staged or gathered for a batch."""
        shutil.rmtree(f"{self._staged}/{self._staged_label(token)}", ignore_errors=True)
        for left in self._gathered().glob(f"{self._staged_label(token)}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _gathered(self) -> Path:
        return private_folder(self._root) / "gathered"

    def _newest_names(self) -> list[str]:
        # Listed again only where somebody else changed the folder: else each commit would cost more than the last.
        memory, state = self._memory, self._state()
        if memory.names is None or state is None or state != memory.names_at:
            # The state was read first: a change while the names are read shows the next time.
            memory.names, memory.names_at = newest_names(self._folder.names(), self._begins), state
        return memory.names

    def _publish(self, name: str, token: BatchToken, files: Sequence[StagedFile], manifest: bytes) -> None:
        gathered = self._gathered() / f"{self._staged_label(token)}-{secrets.token_hex(4)}"
        try:
            self._gather(gathered, token, files, manifest)
            self._rename(gathered, name)
        except OSError:
            shutil.rmtree(gathered, ignore_errors=True)
            raise

    def _gather(self, gathered: Path, token: BatchToken, files: Sequence[StagedFile], manifest: bytes) -> None:
        """Make the folder with the staged files and the manifest in it, durable and still out of sight."""
        gathered.mkdir(parents=True)
        folders = {gathered}
        for file in files:
            target = gathered / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            # A link, not a move: whatever happens next, the staged file is there for another try.
            os.link(f"{self._staged}/{self._staged_label(token)}/{file.path}", target)
            folders.update(gathered / parent for parent in Path(file.path).parents)
        _write_durably(gathered / MANIFEST, manifest)
        for folder in folders:
            fsync(folder)

    def _rename(self, gathered: Path, name: str) -> None:
        """Make the batch visible. A folder with something in it is not replaced."""
        memory, before = self._memory, self._state()
        try:
            gathered.rename(self._root / name)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise FileExistsError(error.errno, "the batch of this number exists", name) from error
            raise
        after = self._state()
        # One folder more is this one; of two the other is somebody else's.
        if before is not None and after is not None and before == memory.names_at and after[1] - before[1] <= 1:
            memory.names, memory.names_at = [name], after
        fsync(self._root)

    def _finish(self, batch: Batch) -> None:
        self.clear(batch.position.last)

    def _state(self) -> tuple[int, int] | None:
        """When something was last put into the folder or removed, and its number of links, which counts its folders.

        The clock of a file system may tick slower than commits come.
        """
        try:
            found = self._root.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_nlink

    def _write(self, path: str, body: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(exist_ok=True)
        written = private_folder(self._root) / f"{target.name}-{secrets.token_hex(4)}"
        _write_durably(written, body)
        written.rename(target)
        for folder in (target.parent, self._root):
            fsync(folder)


def private_folder(root: Path) -> Path:
    """The folder for what readers must not see: next to the target, so that what is in it can be renamed into it."""
    return root.parent / f".{root.name}.penstock"


def _write_durably(path: Path, body: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(body)
        handle.flush()
        os.fsync(handle.fileno())
