"""The files of a table, here or in an object store: a file alone, or all of a folder that Spark would read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, cast

from penstock.storage import Storage


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, by its path in the file system; `mark` changes with its content."""

    path: str
    relative: str
    size_bytes: int
    mark: str


class TableFiles:
    """What is at a path. Names that begin with `_` or `.` are not data, unless they name a partition."""

    def __init__(self, path: str, storage: Storage = Storage()) -> None:
        self.fs, root = storage.filesystem(path)
        self.root = root.rstrip("/") or "/"

    def list(self) -> list[DataFile]:
        """Every data file, by name. Raises `FileNotFoundError` where there is nothing at all."""
        self.fs.invalidate_cache(self.root)
        found: dict[str, dict[str, Any]] = self.fs.find(self.root, detail=True)
        files = sorted(
            (self._file(path, info) for path, info in found.items() if info["type"] == "file"), key=lambda f: f.path
        )
        files = [file for file in files if _is_data(file.relative)]
        if not files:
            raise FileNotFoundError(self.root)
        return files

    def open(self, file: DataFile) -> IO[bytes]:
        """A file's bytes, unpacked where its name says that they are packed."""
        return cast(IO[bytes], self.fs.open(file.path, "rb", compression="infer"))

    def _file(self, path: str, info: dict[str, Any]) -> DataFile:
        relative = path.removeprefix(self.root).strip("/") or path.rpartition("/")[2]
        mark = next((info[key] for key in ("mtime", "ETag", "etag", "LastModified", "updated") if key in info), "")
        return DataFile(path, relative, int(info["size"] or 0), str(mark))


def version_of(files: Iterable[DataFile]) -> str:
    """A short text for a set of files: another one where a file came, went or changed."""
    lines = "\n".join(f"{file.relative}\0{file.size_bytes}\0{file.mark}" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def partition_values(relative: str) -> dict[str, str]:
    """The values in the names of the folders that lead to a file, as they are written there."""
    return dict(part.split("=", 1) for part in relative.split("/")[:-1] if "=" in part)


def _is_data(relative: str) -> bool:
    return not any(part[0] in "._" and "=" not in part for part in relative.split("/"))
