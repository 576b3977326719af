"""Copies of a checkpoint, made while its stream runs: each can be restored, whenever it was made.

Spark never changes a file of a batch that is committed. So the newest committed batch is read first, and everything up
to it is copied: what the stream writes meanwhile belongs to later batches, and is left out. What Spark purges meanwhile
belongs to batches that are not needed, unless the copying takes longer than Spark keeps them; then it starts again.

A copy has the checkpoint's own files under their own names, so it can be read as a checkpoint, and `manifest.json` with
the size and checksum of each. Only with its manifest is it a copy: that is written last and removed first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from fsspec.implementations.local import LocalFileSystem

from penstock.checkpoint.files import PROGRESS_NOTES, SparkCheckpoint
from penstock.checkpoint.state_stores import read_state, state_version
from penstock.errors import MissingError, TerminalError, TransientError
from penstock.storage import Storage

MANIFEST = "manifest.json"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_LOG = re.compile(r"(offsets|commits)/(\d+)")
_CHECKSUM = re.compile(r"(.*/)?\.([^/]+)\.crc")
_TRIES = 3
_PART = ".part"
_PART_AGE = timedelta(days=1)
_TIME = "%Y%m%dT%H%M%S.%fZ"

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
    """A complete copy of a checkpoint."""

    path: str
    kind: Kind
    """What a restore saved before it wrote is a plain copy, and may be of a damaged checkpoint."""
    pipeline: str
    checkpoint: str
    query_id: str | None
    batch: int | None
    """The newest committed batch in it; None for a plain copy."""
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


def backups_of(checkpoint: str) -> str:
    """Where the copies of a checkpoint go by default."""
    return f"{checkpoint.rstrip('/')}-backups"


def make_backup(
    checkpoint: SparkCheckpoint,
    place: str,
    pipeline: str,
    keep: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Backup:
    """Copy a checkpoint, running or not, up to its newest committed batch; then remove all but `keep` of its copies."""
    for left in reversed(range(_TRIES)):
        batch = checkpoint.last_committed()
        if batch is None:
            raise MissingError(
                "BACKUP_NOTHING_YET",
                f"checkpoint {checkpoint.path} has no committed batch yet: there is nothing to keep",
                hint="run the pipeline first",
            )
        try:
            made = _copy(checkpoint, place, pipeline, "backup", batch, progress)
            break
        except _NotWholeError as missing:
            if not left:
                raise TransientError(
                    "BACKUP_NOT_WHOLE",
                    f"copying checkpoint {checkpoint.path}: files that batch {batch} needs are not there",
                    context={"missing": ", ".join(missing.names[:8])},
                    hint="penstock checkpoint verify FILE says whether the checkpoint is damaged",
                ) from None
    if keep is not None:
        _keep_newest(place, checkpoint.path, keep, checkpoint.storage)
    clear_parts(place, checkpoint.storage)
    return made


def save_aside(
    checkpoint: SparkCheckpoint, place: str, pipeline: str, progress: Progress = lambda done, total: None
) -> Backup | None:
    """A plain copy of whatever is in the folder, damaged or not; None if there is nothing."""
    return _copy(checkpoint, place, pipeline, "before restore", None, progress) if checkpoint.sizes() else None


def belongs(name: str, batch: int) -> bool:
    """Whether a file of a checkpoint is of the batches up to this one."""
    checksum = _CHECKSUM.fullmatch(name)
    own = f"{checksum[1] or ''}{checksum[2]}" if checksum is not None else name
    log = _LOG.fullmatch(own)
    if log is not None:
        return int(log[2]) <= batch
    if own.startswith("state/"):
        version = state_version(own)
        return not own.endswith(".tmp") and (version is None or version <= batch + 1)
    return own == "metadata" or own in PROGRESS_NOTES or own.startswith("sources/")


def copy_files(
    source: str,
    target: str,
    names: Iterable[str],
    copied: Callable[[CopiedFile], None],
    storage: Storage = Storage(),
) -> None:
    """Copy files of one folder into another; a file that is gone is skipped."""
    filesystem, root = storage.filesystem(source)
    into, folder = storage.filesystem(target)
    for name in names:
        path = f"{folder}/{name}"
        try:
            with filesystem.open(f"{root}/{name}", "rb") as file:
                into.makedirs(path.rpartition("/")[0], exist_ok=True)
                with into.open(path, "wb") as copy:
                    size, digest = copy_bytes(file, copy)
        except FileNotFoundError:
            continue
        copied(CopiedFile(name, size, digest))


def clear_parts(place: str, storage: Storage = Storage()) -> None:
    """Remove what a killed copy left, after a day: a younger one may still be in progress."""
    filesystem, root = storage.filesystem(place)
    before = datetime.now(UTC) - _PART_AGE
    with suppress(FileNotFoundError):
        for path in map(str, filesystem.ls(root, detail=False)):
            name = path.rstrip("/").rsplit("/", 1)[-1]
            with suppress(ValueError):
                if name.startswith(".") and name.endswith(_PART) and _time_of(name[1:]) < before:
                    filesystem.rm(path, recursive=True)


class _NotWholeError(Exception):
    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


def _copy(
    checkpoint: SparkCheckpoint, place: str, pipeline: str, kind: Kind, batch: int | None, progress: Progress
) -> Backup:
    storage = checkpoint.storage
    sizes = {name: size for name, size in checkpoint.sizes().items() if batch is None or belongs(name, batch)}
    now = datetime.now(UTC)
    name = f"{_stamp(now)}-{'before-restore' if batch is None else f'batch-{batch}'}"
    filesystem, root = storage.filesystem(place)
    # Without a rename, as in an object store, the manifest alone says that the copy is whole.
    renames = isinstance(filesystem, LocalFileSystem)
    begun = f".{name}{_PART}" if renames else name
    copy = SparkCheckpoint(f"{place.rstrip('/')}/{begun}", storage)
    files: list[CopiedFile] = []
    done, total = 0, sum(sizes.values())

    def note(file: CopiedFile) -> None:
        nonlocal done
        files.append(file)
        done += file.size_bytes
        progress(min(done, total), total)

    try:
        copy_files(checkpoint.path, copy.path, sorted(sizes, key=_snapshots_first), note, storage)
        if batch is not None and (missing := missing_files(copy, batch)):
            raise _NotWholeError(missing)
        made = Backup(
            path=f"{place.rstrip('/')}/{name}",
            kind=kind,
            pipeline=pipeline,
            checkpoint=checkpoint.path,
            query_id=copy.query_id() if batch is not None else None,
            batch=batch,
            created_at=now,
            files=tuple(sorted(files, key=lambda file: file.name)),
        )
        filesystem.pipe_file(f"{root}/{begun}/{MANIFEST}", made.to_json().encode())
        if renames:
            Path(root, begun).rename(Path(root, name))
    except BaseException:
        with suppress(FileNotFoundError):
            filesystem.rm(f"{root}/{begun}", recursive=True)
        raise
    return made


def _snapshots_first(name: str) -> tuple[bool, str]:
    """A snapshot of RocksDB is written after the files that it names: copied before them, it finds them there."""
    return "/SSTs/" in name, name


def missing_files(checkpoint: SparkCheckpoint, batch: int) -> list[str]:
    """The files that a start after a batch reads and that a checkpoint or a copy lacks."""
    names = checkpoint.sizes()
    needed = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
    if batch > 0:
        needed.append(f"offsets/{batch - 1}")
    state = read_state(checkpoint.path, checkpoint.storage)
    return [name for name in needed if name not in names] + (state.missing(batch + 1) if state.kept else [])


def _keep_newest(place: str, checkpoint: str, keep: int, storage: Storage) -> None:
    mine = [one for one in list_backups(place, storage) if one.kind == "backup" and one.checkpoint == checkpoint]
    for old in mine[: -max(keep, 1)]:
        filesystem, root = storage.filesystem(old.path)
        # The manifest first: without it the folder is no copy.
        filesystem.rm_file(f"{root}/{MANIFEST}")
        filesystem.rm(root, recursive=True)


def _stamp(now: datetime) -> str:
    """The time in the name of a copy, to the millisecond: names sort by it."""
    return now.strftime(_TIME).replace(f"{now.microsecond:06d}Z", f"{now.microsecond // 1000:03d}Z")


def _time_of(name: str) -> datetime:
    return datetime.strptime(name.partition("Z-")[0] + "Z", _TIME).replace(tzinfo=UTC)


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
            hint="penstock checkpoint backup FILE --list shows the backups",
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
    """The complete copies in a place, oldest first."""
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
