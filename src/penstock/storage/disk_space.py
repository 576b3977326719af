"""Space on local disks: whether an error means a full disk, and which of some places has the least space left."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import TerminalError
from penstock.storage.storage import local_path
from penstock.wording import size

ROOM_HINT = "free space there, and run again: nothing is lost or duplicated"
_SIGNS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


def is_full(error: BaseException | str) -> bool:
    """Whether a disk was full. Errors from Java, Rust and SQLite have no errno, only text."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(sign in str(error) for sign in _SIGNS)


def disk_full(doing: str, context: Mapping[str, object]) -> TerminalError:
    """The error if it is not known which disk it is."""
    return TerminalError(
        "DISK_FULL",
        f"{doing}: a disk is full",
        context=context,
        hint="free space for the checkpoint, the tables and Spark's local folder, and run again: the "
        "interrupted batch is repeated, nothing is lost or duplicated",
    )


@dataclass(frozen=True)
class Room:
    """The space left on the disk of a place."""

    place: Path
    free: int
    whole: int
    no_more_files: bool = False

    def __str__(self) -> str:
        files = ", and no further file can be made" if self.no_more_files else ""
        return f"{self.place}: {size(self.free)} of {size(self.whole)} are free{files}"


def least_room(places: Iterable[str]) -> Room | None:
    """The place with the least space, the first of those on one disk; none if none of them is on this machine."""
    found = [room for place in places if (room := _room_at(place)) is not None]
    return min(found, key=lambda room: (not room.no_more_files, room.free), default=None)


def _room_at(place: str) -> Room | None:
    path = local_path(place)
    if path is None:
        return None
    with suppress(OSError, StopIteration):
        disk = os.statvfs(next(folder for folder in (path, *path.parents) if folder.exists()))
        no_more_files = disk.f_files > 0 and disk.f_favail == 0
        return Room(path, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, no_more_files)
    return None
