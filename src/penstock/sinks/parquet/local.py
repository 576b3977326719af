"""A target on a local disk: batches put together beside it, and made visible by one rename each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import MissingError
from penstock.model import BatchToken
from penstock.sinks.files import TableFolder
from penstock.sinks.parquet.batches import Batches, sync_folders
from penstock.sinks.parquet.columns import Columns, changing, write_columns
from penstock.sinks.parquet.stage import StagedFile


class LocalPlace:
    """A folder."""

    def __init__(self, sink: str, root: Path, pipeline: str) -> None:
        self._sink = sink
        self._root = root
        self.batches = Batches(root, pipeline, sink)

    def columns(self) -> Columns | None:
        """The columns of the target, or none where it is no target of ours."""
        return Columns.read(self._root)

    def refuse_others(self) -> None:
        """Refuse a folder of somebody else's files, whose readers would see both, and one that nothing moves into."""
        root = self._root
        if root.is_mount():
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self._sink}: a mount point has no place beside it from which a batch could be renamed into it",
                context={"path": root},
                hint="give a folder below it",
            )
        if not root.exists() or (root.is_dir() and Columns.read(root) is not None):
            return
        found = [root.name] if root.is_file() else sorted(path.name for path in root.iterdir())
        if found:
            raise MissingError(
                "SINK_PATH_NOT_A_TABLE",
                f"sink {self._sink}: the folder holds files that no Parquet sink wrote",
                context={"path": root, "found": found[0]},
                hint="give the sink an empty folder",
            )

    def agree(self, merge: Callable[[Columns | None], Columns]) -> Columns:
        """Add columns to those of the target, as nobody else has changed them meanwhile."""
        root = self._root
        with changing(root):
            held = Columns.read(root)
            agreed = merge(held)
            if agreed != held:
                write_columns(root, agreed)
                sync_folders([root, root.parent])
        return agreed

    def staging(self, token: BatchToken) -> TableFolder:
        """Where the batch's files are staged."""
        return TableFolder(str(self.batches.staging(token)))

    def land(self, token: BatchToken, files: Sequence[StagedFile], columns: Columns) -> None:
        """Commit a batch. An `OSError` where its folder is there."""
        gathered = self.batches.gathering(token)
        try:
            self.batches.gather(gathered, token, files, columns)
            self.batches.publish(gathered, token)
        except OSError:
            shutil.rmtree(gathered, ignore_errors=True)
            raise

    def settle(self) -> None:
        """Nothing: a batch is there whole or not at all."""
