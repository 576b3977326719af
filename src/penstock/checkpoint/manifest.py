"""A copy of a checkpoint and its manifest: what it is of, and each file with its size and checksum.

A copy is one when its manifest is there, which is written last and removed first. Beside `manifest.json` the folder has
the checkpoint's own files under their own names: it can be read as a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from penstock.errors import MissingError, TerminalError
from penstock.storage import Storage

MANIFEST = "manifest.json"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20

Kind = Literal["backup", "before restore"]
Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the total."""


@dataclass(frozen=True)
class CopiedFile:
    """One file of a copy."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Backup:
    """A whole copy of a checkpoint."""

    path: str
    kind: Kind
    """What a restore saved before it wrote is a plain copy, and may be of a damaged checkpoint."""
    pipeline: str
    checkpoint: str
    query_id: str | None
    batch: int | None
    """The newest committed batch in it; none only of a plain copy."""
    created_at: datetime
    files: tuple[CopiedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    def to_json(self) -> str:
        """The manifest."""
        body = {name: value for name, value in asdict(self).items() if name != "path"}
        return json.dumps({"format": _FORMAT, **body, "created_at": self.created_at.isoformat()}, indent=1)

    def facts(self) -> dict[str, Any]:
        """For `--json`: everything but the single files."""
        body = {name: value for name, value in asdict(self).items() if name != "files"}
        return {
            **body,
            "created_at": self.created_at.isoformat(),
            "files": len(self.files),
            "size_bytes": self.size_bytes,
        }


def read_backup(path: str, storage: Storage = Storage()) -> Backup:
    """The copy in a folder."""
    filesystem, root = storage.filesystem(path)
    try:
        body = json.loads(filesystem.cat_file(f"{root}/{MANIFEST}"))
        if body.pop("format") != _FORMAT:
            raise MissingError(
                "BACKUP_UNKNOWN_FORMAT",
                f"backup {path}: it was made by another version of Penstock",
                hint="use that version to restore it",
            )
        files = tuple(_contained(CopiedFile(**file)) for file in body.pop("files"))
        made = datetime.fromisoformat(body.pop("created_at"))
        return Backup(path=path, files=files, created_at=made, **body)
    except FileNotFoundError:
        raise MissingError(
            "BACKUP_MISSING",
            f"{path} is not a backup: it has no {MANIFEST}",
            hint="penstock checkpoint backup FILE --list shows those that there are",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise TerminalError(
            "BACKUP_DAMAGED",
            f"backup {path}: its {MANIFEST} cannot be read",
            context={"found": f"{type(error).__name__}: {error}"},
            hint="take another one: penstock checkpoint backup FILE --list",
        ) from None


def _contained(file: CopiedFile) -> CopiedFile:
    """A file whose name stays in the copy, and so in what it is restored to."""
    if re.search(r"(^|[/\\])\.\.([/\\]|$)|^[/\\]|\x00", file.name):
        raise ValueError(f"{file.name!r} leads out of the folder")
    return file


def list_backups(place: str, storage: Storage = Storage()) -> list[Backup]:
    """The whole copies in a place, oldest first. What was begun and is not whole is not among them."""
    filesystem, root = storage.filesystem(place)
    try:
        folders = [str(found["name"]) for found in filesystem.ls(root, detail=True) if found["type"] == "directory"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for folder in folders:
        name = folder.rstrip("/").rsplit("/", 1)[-1]
        if name.startswith("."):
            continue
        try:
            found.append(read_backup(f"{place.rstrip('/')}/{name}", storage))
        except (MissingError, TerminalError):
            continue
    return sorted(found, key=lambda one: (one.created_at, one.name))


def check_files(backup: Backup, progress: Progress = lambda done, total: None, storage: Storage = Storage()) -> None:
    """Raise where a file of the copy is gone or is not what was copied."""
    filesystem, root = storage.filesystem(backup.path)
    wrong: dict[str, str] = {}
    done = 0
    for file in backup.files:
        try:
            with filesystem.open(f"{root}/{file.name}", "rb") as source:
                seen = copy_bytes(source, None)
        except FileNotFoundError:
            wrong[file.name] = "it is gone"
            continue
        if seen != (file.size_bytes, file.sha256):
            wrong[file.name] = f"{seen[0]} bytes, {seen[1][:12]}, and was {file.size_bytes} bytes, {file.sha256[:12]}"
        done += file.size_bytes
        progress(done, backup.size_bytes)
    if wrong:
        shown = dict(list(wrong.items())[:8])
        raise TerminalError(
            "BACKUP_DAMAGED",
            f"backup {backup.path}: {len(wrong)} of {len(backup.files)} files are not what was copied",
            context=shown,
            hint="nothing was changed; take another one: penstock checkpoint backup FILE --list",
        )


def copy_bytes(source: Any, target: Any | None) -> tuple[int, str]:
    """Copy an open file into another, or only read it; its size and checksum."""
    size, digest = 0, hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        size += len(chunk)
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return size, digest.hexdigest()
