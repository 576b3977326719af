"""The files of a fleet, looked at again and again: what was added, changed or removed since the last time.

A definition is its file and what that is made of: schemas, certificates, secrets in files, code. Only what has been
the same at two looks is reported, so that a file that is being written is not taken half, and only what differs in
its bytes.
A folder that cannot be read says nothing about its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.config.files import pipeline_files

Stats = tuple[tuple[str, int, int, int], ...]
"""Of each file its path, and when and how it lies on the disk."""


@dataclass(frozen=True)
class Changes:
    """The files that are not what they were."""

    added: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()


@dataclass
class _Known:
    stats: Stats
    digest: str


class FileWatch:
    """Looks at the files that some paths stand for. What is there at the beginning is known."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._folders = tuple(path for path in paths if path.is_dir())
        self._known: dict[Path, _Known] = {}
        self._seen: dict[Path, Stats | None] = {}

    def know(self, file: Path, behind: Iterable[Path] = ()) -> None:
        """A file is taken as it is now, with the files behind it."""
        whole = _whole(file, behind)
        self._known[file] = _Known(_stats(whole), _digest(whole))

    def look(self, behind: Mapping[Path, Iterable[Path]]) -> Changes:
        """What is new since the last look, each once; `behind` are the files that each definition is made of."""
        try:
            there = pipeline_files(self._paths)
            if any(not folder.is_dir() for folder in self._folders):
                return Changes()
        except OSError:
            return Changes()
        now: dict[Path, Stats | None] = {
            file: _stats(_whole(file, behind.get(file, ()))) for file in there if file.is_file()
        }
        now |= {file: None for file in self._known if file not in now}
        steady = [file for file, stats in now.items() if file in self._seen and self._seen[file] == stats]
        self._seen = now
        added = tuple(file for file in steady if now[file] is not None and file not in self._known)
        removed = tuple(file for file in steady if now[file] is None)
        changed = tuple(file for file in steady if file not in added and self._differs(file, now[file], behind))
        for file in removed:
            del self._known[file]
        for file in (*added, *changed):
            self.know(file, behind.get(file, ()))
        return Changes(added, changed, removed)

    def _differs(self, file: Path, stats: Stats | None, behind: Mapping[Path, Iterable[Path]]) -> bool:
        known = self._known[file]
        if stats is None or stats == known.stats:
            return False
        digest = _digest(_whole(file, behind.get(file, ())))
        known.stats = stats
        return digest != known.digest


def _whole(file: Path, behind: Iterable[Path]) -> list[Path]:
    return sorted({file.absolute(), *behind})


def _stats(files: Iterable[Path]) -> Stats:
    found = []
    for file in files:
        try:
            stat = file.stat()
            found.append((str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append((str(file), 0, 0, 0))
    return tuple(found)


def _digest(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        try:
            inner = hashlib.sha256(file.read_bytes()).digest()
        except OSError:
            inner = b""
        whole.update(str(file).encode(errors="replace") + b"\0" + inner)
    return whole.hexdigest()
