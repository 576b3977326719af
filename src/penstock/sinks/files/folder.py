"""The table's folder: where staged files are opened, made durable and removed, here or in an object store.

The one place that tells local paths from others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

import fsspec


class TableFolder:
    """A table's root. Paths inside are relative, with forward slashes."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri.rstrip("/")
        self._options = dict(storage_options or {})
        parts = urlsplit(uri)
        if parts.scheme == "file":
            self.local: Path | None = Path(unquote(parts.path))
        else:
            self.local = None if "://" in uri else Path(uri)

    def open(self, path: str) -> BinaryIO:
        """Open a new file for writing, its folders made where needed."""
        if self.local is None:
            return cast(BinaryIO, fsspec.open(f"{self.uri}/{path}", "wb", **self._options).open())
        target = self.local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")

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
        fs, root = fsspec.url_to_fs(self.uri, **self._options)
        if fs.exists(f"{root}/{path}"):
            fs.rm_file(f"{root}/{path}")

    def data_files(self, prefix: str) -> Iterator[str]:
        """The files outside the log whose name begins with `prefix`. A walk through the whole folder."""
        if self.local is None:
            return
        for folder, folders, names in os.walk(self.local):
            folders[:] = [name for name in folders if name != "_delta_log"]
            for name in names:
                if name.startswith(prefix):
                    yield (Path(folder) / name).relative_to(self.local).as_posix()

    def is_file(self) -> bool:
        """Whether a file is where the folder should be."""
        return self.local is not None and self.local.is_file()

    def any_file(self) -> str | None:
        """Some file in the folder, if there is one; or the file that stands in its place."""
        if self.local is None:
            return None
        if self.local.is_file():
            return self.local.name
        found = (path for path in self.local.rglob("*") if path.is_file())
        return next((path.relative_to(self.local).as_posix() for path in found), None)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
