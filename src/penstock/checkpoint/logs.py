"""The files of a checkpoint one by one: which are there, which can be used, which are left over.

Nothing here raises for a bad file: a file that Spark could not use says why. Spark needs few of them: the newest
offsets and those before them, the newest commit, the metadata; what is older is history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.checkpoint.log_file import AGAIN_NOTE, STATE_NOTE, TOPICS_NOTE, LogFile, compare_checksum
from penstock.checkpoint.writing import RESTORING
from penstock.model import BatchToken
from penstock.storage import Storage

_STRAY = re.compile(r"\..*(\.tmp|\.penstock-\d+)|\..*\.tmp\.crc|\.draft(?!\.penstock\.).+")


@dataclass(frozen=True)
class CheckpointFiles:
    """Everything but the state, as it was when it was looked at."""

    metadata: LogFile | None
    offsets: Mapping[int, LogFile]
    commits: Mapping[int, LogFile]
    sources: Mapping[str, LogFile]
    strays: tuple[str, ...]
    """Files that a write left which did not come to its end."""
    restoring: str | None
    """What was begun to be written here and not ended."""
    notes: Mapping[str, LogFile] = field(default_factory=dict)
    """Penstock's own, as far as a run goes by them."""

    @property
    def again(self) -> tuple[BatchToken, ...]:
        """The batches that a restore left to be run again: the sinks have them, and the state has not."""
        note = self.notes.get(AGAIN_NOTE)
        return note.tokens if note is not None else ()

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that the offsets belong to, as far as they were noted."""
        note = self.notes.get(TOPICS_NOTE)
        return note.ids if note is not None else {}

    @property
    def newest(self) -> int | None:
        """The newest batch that this checkpoint knows of, run again or not yet."""
        return max((*self.offsets, *(token.batch_id for token in self.again)), default=None)

    @property
    def begun(self) -> int | None:
        """The newest batch with a file of offsets, which may be unusable."""
        return max(self.offsets, default=None)

    @property
    def committed(self) -> int | None:
        """The newest batch with a commit file, which may be unusable."""
        return max(self.commits, default=None)

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and has not committed."""
        return open_batch(self.begun, self.committed)

    @property
    def query_id(self) -> str | None:
        """The id in the metadata file; none where it cannot be told."""
        return self.metadata.query_id if self.metadata is not None else None

    @property
    def all(self) -> list[LogFile]:
        """Every file that was read."""
        first = [self.metadata] if self.metadata is not None else []
        return [*first, *self.sources.values(), *self.offsets.values(), *self.commits.values()]


def open_batch(begun: int | None, committed: int | None) -> int | None:
    """The batch that has begun and has not committed, by the newest of each."""
    return begun if begun is not None and (committed is None or committed < begun) else None


def read_files(path: str, storage: Storage = Storage()) -> CheckpointFiles:
    """Look at every file of a checkpoint but the state. Of a checkpoint in use: commits first, so none is ahead."""
    filesystem, root = storage.filesystem(path)
    root = root.rstrip("/")
    top = _names(filesystem, root)
    commits = _names(filesystem, f"{root}/commits")
    offsets = _names(filesystem, f"{root}/offsets")
    sources = {
        f"sources/{one}/{name}"
        for one in _names(filesystem, f"{root}/sources")
        if one.isdigit()
        for name in _names(filesystem, f"{root}/sources/{one}")
    }
    there = top | {f"commits/{n}" for n in commits} | {f"offsets/{n}" for n in offsets} | sources
    logs = [name for name in there if name == "metadata" or _own(name).isdigit()]
    sums = [_checksum_name(name) for name in logs if _checksum_name(name) in there]
    noted = [name for name in (AGAIN_NOTE, TOPICS_NOTE, STATE_NOTE) if name in top]
    bodies = _bodies(filesystem, root, [*logs, *sums, *noted, *([RESTORING] if RESTORING in top else [])])
    notes = [name for name in noted if name in bodies]
    files = {
        name: LogFile(name, bodies[name], compare_checksum(bodies[name], bodies.get(_checksum_name(name))))
        for name in logs
        if name in bodies
    }
    restoring = bodies.get(RESTORING)
    return CheckpointFiles(
        metadata=files.get("metadata"),
        offsets=_numbered(files, "offsets/"),
        commits=_numbered(files, "commits/"),
        sources={name: files[name] for name in sorted(files) if name.startswith("sources/")},
        strays=tuple(sorted(name for name in there if _STRAY.fullmatch(_own(name)) and not _penstock(name))),
        restoring=None if restoring is None else restoring.decode(errors="replace").strip(),
        notes={name: LogFile(name, bodies[name]) for name in notes},
    )


def written_at(path: str, name: str, storage: Storage = Storage()) -> datetime | None:
    """When a file of a checkpoint was written, where the storage says."""
    filesystem, root = storage.filesystem(path)
    try:
        found: datetime = filesystem.modified(f"{root.rstrip('/')}/{name}")
    except (OSError, NotImplementedError, KeyError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _numbered(files: Mapping[str, LogFile], folder: str) -> dict[int, LogFile]:
    found = {int(_own(name)): file for name, file in files.items() if name.startswith(folder)}
    return dict(sorted(found.items()))


def _names(filesystem: Any, folder: str) -> set[str]:
    try:
        return {str(path).rstrip("/").rsplit("/", 1)[-1] for path in filesystem.ls(folder, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _bodies(filesystem: Any, root: str, names: Iterable[str]) -> dict[str, bytes]:
    """What is in the files, asked for at once; one that went in the meantime is left out."""
    paths = {f"{root}/{name}": name for name in names}
    found = filesystem.cat(list(paths), on_error="return") if paths else {}
    for body in found.values():
        if isinstance(body, Exception) and not isinstance(body, FileNotFoundError):
            raise body
    return {paths[path]: body for path, body in found.items() if isinstance(body, bytes)}


def _checksum_name(name: str) -> str:
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}.{own}.crc"


def _own(name: str) -> str:
    return name.rpartition("/")[2]


def _penstock(name: str) -> bool:
    """A run rewrites its notes all the time; Spark does not read them."""
    return name.startswith(".penstock.")
