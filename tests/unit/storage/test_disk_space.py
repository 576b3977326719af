"""Errors that tell of a full disk are known, whoever raised them, and the place with the least room is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.storage.disk_space import Room, is_full, least_room


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "kein Platz"),
        OSError(errno.EDQUOT, "too much"),
        RuntimeError("Generic LocalFileSystem error: Unable to copy data: No space left on device (os error 28)"),
        RuntimeError("(sqlite3.OperationalError) database or disk is full"),
        "org.apache.hadoop.fs.FSError: java.io.IOException: Disk quota exceeded",
    ],
)
def test_is_full_by_number_or_by_the_words_of_the_system(error: Exception | str) -> None:
    assert is_full(error)


def test_is_full_not_for_another_error() -> None:
    assert not is_full(OSError(errno.EACCES, "Permission denied"))


def test_least_room_is_where_least_is_free_the_first_of_one_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"checkpoints": 40, "lake": 3}

    def statvfs(path: Path) -> SimpleNamespace:
        blocks = free.get(path.name, 1_000)
        return SimpleNamespace(f_bavail=blocks, f_blocks=2_000, f_frsize=1024, f_files=9, f_favail=9)

    for name in free:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "statvfs", statvfs)
    places = ["s3://lake/x", f"{tmp_path}/checkpoints", f"file://{tmp_path}/lake/out", f"{tmp_path}/lake/other"]
    room = least_room(places)
    assert room == Room(tmp_path / "lake/out", 3 * 1024, 2_000 * 1024)
    assert str(room) == f"{tmp_path}/lake/out: 3.1 kB of 2.0 MB are free"


def test_least_room_is_where_no_further_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(path: Path) -> SimpleNamespace:
        few = path.name == "many"
        return SimpleNamespace(f_bavail=500, f_blocks=500, f_frsize=1024, f_files=9, f_favail=0 if few else 9)

    monkeypatch.setattr(os, "statvfs", statvfs)
    (tmp_path / "many").mkdir()
    room = least_room([str(tmp_path), str(tmp_path / "many")])
    assert str(room).endswith("many: 512.0 kB of 512.0 kB are free, and no further file can be made")


def test_least_room_of_places_elsewhere_is_not_known() -> None:
    assert least_room(["s3://lake/out"]) is None
