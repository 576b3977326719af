"""The table's folder: where staged files are opened, made durable, listed and removed, here or in an object store.

The one place that tells local paths from others.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.errors import MissingError
from penstock.storage import ObjectFileSystem, Storage, local_path


class TableFolder:
    """A table's root. Paths inside are relative, with forward slashes."""

    def __init__(self, uri: str, storage: Storage = Storage()) -> None:
        self.uri = uri.rstrip("/")
        self._storage = storage
        self.local: Path | None = local_path(uri)

    def open(self, path: str) -> BinaryIO:
        """Open a new file for writing, its folders made where needed. In an object store it appears when closed."""
        if self.local is None:
            fs, root = self._filesystem()
            return cast(BinaryIO, fs.open(f"{root}/{path}", "wb"))
        target = self.local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; none where it is not there."""
        try:
            if self.local is not None:
                return (self.local / path).read_bytes()
            fs, root = self._filesystem()
            return cast(bytes, fs.cat_file(f"{root}/{path}"))
        except FileNotFoundError:
            return None

    def put_new(self, path: str, body: bytes) -> bool:
        """Make a small file, whole and durable, where none is; false where one is. Of two at once one succeeds."""
        try:
            if self.local is None:
                fs, root = self._filesystem()
                if not isinstance(fs, ObjectFileSystem):
                    raise MissingError(
                        "STORAGE_NOT_SAFE",
                        f"writing {self.uri}/{path}: nothing there makes a file only where none is",
                        hint="use a local path, or one of s3://, gs://, abfss:// and hdfs://",
                    )
                fs.put_new(f"{root}/{path}", body)
                return True
            target = self.local / path
            fresh = target.with_name(f".penstock-{secrets.token_hex(8)}.tmp")
            try:
                with fresh.open("xb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(fresh, target)
            finally:
                fresh.unlink(missing_ok=True)
            _fsync(target.parent)
        except FileExistsError:
            return False
        return True

    def dataset(
        self, paths: Sequence[str], schema: pa.Schema | None = None, format: str | ds.FileFormat = "parquet"
    ) -> ds.Dataset:
        """Parquet files of the folder, for Arrow to read."""
        if self.local is not None:
            return ds.dataset([str(self.local / path) for path in paths], schema=schema, format=format)
        fs, root = self._filesystem()
        return ds.dataset([f"{root}/{path}" for path in paths], schema=schema, format=format, filesystem=fs)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the names that lead to them survive a power failure. Object stores already do."""
        if self.local is None:
            return
        folders: set[Path] = set()
        for path in paths:
            _fsync(self.local / path)
            folders.update(self.local / parent for parent in Path(path).parents)
        for folder in folders:
            _fsync(folder)

    def remove(self, path: str) -> None:
        """Remove a file that may be gone already."""
        if self.local is not None:
            (self.local / path).unlink(missing_ok=True)
            return
        fs, root = self._filesystem()
        try:
            fs.rm_file(f"{root}/{path}")
        except FileNotFoundError:
            return

    def has(self, path: str) -> bool:
        """Whether a file is there."""
        if self.local is not None:
            return (self.local / path).exists()
        fs, root = self._filesystem()
        return bool(fs.isfile(f"{root}/{path}"))

    def data_files(self, prefix: str) -> Iterator[str]:
        """The files outside the log whose name begins with `prefix`. A walk through the whole folder."""
        if self.local is None:
            for path in self._listed():
                if path.rpartition("/")[2].startswith(prefix) and not path.startswith("_delta_log/"):
                    yield path
            return
        for folder, folders, names in os.walk(self.local):
            folders[:] = [name for name in folders if name != "_delta_log"]
            for name in names:
                if name.startswith(prefix):
                    yield (Path(folder) / name).relative_to(self.local).as_posix()

    def older(self, below: str, ending: str, than: datetime) -> Iterator[str]:
        """The files below a folder in it whose name ends so, and that were written before a moment."""
        if self.local is None:
            for path, about in self._listed(below).items():
                if path.endswith(ending) and "mtime" in about and about["mtime"] < than:
                    yield path
            return
        for file in (self.local / below).rglob(f"*{ending}"):
            try:
                if datetime.fromtimestamp(file.stat().st_mtime, UTC) < than:
                    yield file.relative_to(self.local).as_posix()
            except OSError:
                continue

    def names(self, below: str) -> list[str]:
        """The names of what is directly below a folder in it."""
        if self.local is not None:
            folder = self.local / below
            return [path.name for path in folder.iterdir()] if folder.is_dir() else []
        fs, root = self._filesystem()
        try:
            return [str(path).rsplit("/", 1)[-1] for path in fs.ls(f"{root}/{below}".rstrip("/"), detail=False)]
        except FileNotFoundError:
            return []

    def is_file(self) -> bool:
        """Whether a file is where the folder should be."""
        if self.local is not None:
            return self.local.is_file()
        fs, root = self._filesystem()
        return bool(fs.isfile(root))

    def any_file(self) -> str | None:
        """Some file in the folder, if there is one; or the file that stands in its place."""
        return next(self.all_files(), None)

    def all_files(self) -> Iterator[str]:
        """Every file in the folder; or the file that stands in its place."""
        if self.local is None:
            yield from self._listed()
        elif self.local.is_file():
            yield self.local.name
        else:
            for path in self.local.rglob("*"):
                if path.is_file():
                    yield path.relative_to(self.local).as_posix()

    def _listed(self, below: str = "") -> dict[str, dict[str, Any]]:
        fs, root = self._filesystem()
        try:
            found: dict[str, dict[str, Any]] = fs.find(f"{root}/{below}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {path[len(root) + 1 :] or path.rpartition("/")[2]: about for path, about in found.items()}

    def _filesystem(self) -> tuple[Any, str]:
        fs, root = self._storage.filesystem(self.uri)
        return fs, root.rstrip("/")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
