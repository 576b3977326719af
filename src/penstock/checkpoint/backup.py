"""Copies of a checkpoint, made while its stream runs: each can be restored, whenever it was made.

Spark never changes a file of a batch that is committed. So the newest committed batch is read first, and everything up
to it is copied: what the stream writes meanwhile is of later batches, and is left out. What Spark purges meanwhile is
of batches that nobody needs, unless the copying takes longer than Spark keeps them; then it begins again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from penstock.checkpoint.files import SparkCheckpoint
from penstock.checkpoint.manifest import MANIFEST, Backup, CopiedFile, Kind, Progress, copy_bytes, list_backups
from penstock.checkpoint.state_stores import read_state, state_version
from penstock.errors import MissingError, TransientError
from penstock.storage import Storage

_NOTES = frozenset({".penstock.start", ".penstock.state", ".penstock.topics", ".penstock.again"})
"""Of Penstock's own files beside Spark's, those that belong to the progress; the others are locks, or of a run."""
_LOG = re.compile(r"(offsets|commits)/(\d+)")
_CHECKSUM = re.compile(r"(.*/)?\.([^/]+)\.crc")
_TRIES = 3
_PART = ".part"
_PART_AGE = timedelta(days=1)
_TIME = "%Y%m%dT%H%M%S.%fZ"


def backups_of(checkpoint: str) -> str:
    """Where the copies of a checkpoint go unless something else is said."""
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
            made = _copy(checkpoint.path, place, pipeline, "backup", batch, progress, checkpoint.storage)
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
    checkpoint: str,
    place: str,
    pipeline: str,
    progress: Progress = lambda done, total: None,
    storage: Storage = Storage(),
) -> Backup | None:
    """A plain copy of whatever is in the folder, damaged or not; None where there is nothing."""
    if not _listing(checkpoint, storage):
        return None
    return _copy(checkpoint, place, pipeline, "before restore", None, progress, storage)


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
    return own == "metadata" or own in _NOTES or own.startswith("sources/")


def files_of(checkpoint: str, storage: Storage = Storage()) -> list[str]:
    """Every file of a checkpoint's progress, by its name in it; not the locks and the notes of a run."""
    return sorted(_listing(checkpoint, storage))


def copy_files(
    source: str,
    target: str,
    names: Iterable[str],
    copied: Callable[[CopiedFile], None],
    storage: Storage = Storage(),
) -> None:
    """Copy files of one folder into another. One that is gone is left out."""
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
    """Remove what a killed copying left behind, a day later: a younger one may be in the making."""
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
    checkpoint: str, place: str, pipeline: str, kind: Kind, batch: int | None, progress: Progress, storage: Storage
) -> Backup:
    found = _listing(checkpoint, storage)
    sizes = {name: size for name, size in found.items() if batch is None or belongs(name, batch)}
    now = datetime.now(UTC)
    name = f"{_told(now)}-{'before-restore' if batch is None else f'batch-{batch}'}"
    filesystem, root = storage.filesystem(place)
    # Without a rename, as in an object store, the manifest alone says that the copy is whole.
    renames = isinstance(filesystem, LocalFileSystem)
    begun = f".{name}{_PART}" if renames else name
    folder = f"{place.rstrip('/')}/{begun}"
    files: list[CopiedFile] = []
    done, total = 0, sum(sizes.values())

    def note(file: CopiedFile) -> None:
        nonlocal done
        files.append(file)
        done += file.size_bytes
        progress(min(done, total), total)

    try:
        copy_files(checkpoint, folder, sorted(sizes, key=_snapshots_first), note, storage)
        if batch is not None and (missing := missing_files(folder, batch, storage)):
            raise _NotWholeError(missing)
        made = Backup(
            path=f"{place.rstrip('/')}/{name}",
            kind=kind,
            pipeline=pipeline,
            checkpoint=checkpoint,
            query_id=SparkCheckpoint(folder, storage).query_id() if batch is not None else None,
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


def _listing(checkpoint: str, storage: Storage) -> dict[str, int]:
    """The files and their sizes. A file may go while they are listed, but no folder."""
    filesystem, root = storage.filesystem(checkpoint)
    root = root.rstrip("/")
    if isinstance(filesystem, LocalFileSystem):
        # Not by fsspec: for one file that goes meanwhile it leaves out the whole folder.
        paths = [f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names]
        found = {path: _size(path) for path in paths}
    else:
        found = {str(path): int(about["size"] or 0) for path, about in filesystem.find(root, detail=True).items()}
    names = {path[len(root) + 1 :]: size for path, size in found.items()}
    return {name: size for name, size in names.items() if not name.startswith(".penstock.") or name in _NOTES}


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _snapshots_first(name: str) -> tuple[bool, str]:
    """A snapshot of RocksDB is written after the files that it names: copied before them, it finds them there."""
    return "/SSTs/" in name, name


def missing_files(folder: str, batch: int, storage: Storage = Storage()) -> list[str]:
    """Of the files that a start after a batch reads, what a checkpoint or a copy does not have."""
    names = _listing(folder, storage)
    needed = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
    if batch > 0:
        needed.append(f"offsets/{batch - 1}")
    state = read_state(folder, storage)
    return [name for name in needed if name not in names] + (state.missing(batch + 1) if state.kept else [])


def _keep_newest(place: str, checkpoint: str, keep: int, storage: Storage) -> None:
    mine = [one for one in list_backups(place, storage) if one.kind == "backup" and one.checkpoint == checkpoint]
    for old in mine[: -max(keep, 1)]:
        remove_backup(old, storage)


def remove_backup(backup: Backup, storage: Storage = Storage()) -> None:
    """Remove a copy; its manifest first, without which it is none."""
    filesystem, root = storage.filesystem(backup.path)
    filesystem.rm_file(f"{root}/{MANIFEST}")
    filesystem.rm(root, recursive=True)


def _told(now: datetime) -> str:
    """The time in the name of a copy, which sorts by it: to the millisecond."""
    return now.strftime(_TIME).replace(f"{now.microsecond:06d}Z", f"{now.microsecond // 1000:03d}Z")


def _time_of(name: str) -> datetime:
    return datetime.strptime(name.partition("Z-")[0] + "Z", _TIME).replace(tzinfo=UTC)
