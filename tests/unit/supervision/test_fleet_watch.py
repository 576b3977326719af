from __future__ import annotations

import os
from pathlib import Path

from penstock.supervision.fleet import Changes, FileWatch


def watched(folder: Path) -> FileWatch:
    """The files of a folder as they are now, known."""
    watch = FileWatch([folder])
    for file in folder.glob("*.yaml"):
        watch.know(file)
    return watch


def test_watch_of_files_that_stay_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    watch = watched(tmp_path)
    assert [watch.look({}) for _ in range(3)] == [Changes()] * 3


def test_watch_of_a_new_file_tells_it_once_it_is_the_same_at_two_looks(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    file = tmp_path / "a.yaml"
    file.write_text("half")
    assert watch.look({}) == Changes()
    file.write_text("half and half")
    assert watch.look({}) == Changes()
    assert watch.look({}) == Changes(added=(file,))
    assert watch.look({}) == Changes()


def test_watch_of_a_changed_file_tells_it_once(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a")
    watch = watched(tmp_path)
    watch.look({})
    file.write_text("another")
    assert [watch.look({}) for _ in range(3)] == [Changes(), Changes(changed=(file,)), Changes()]


def test_watch_of_a_file_that_was_only_touched_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a")
    watch = watched(tmp_path)
    watch.look({})
    os.utime(file, (1, 1))
    assert [watch.look({}) for _ in range(3)] == [Changes()] * 3


def test_watch_of_a_file_behind_a_definition_tells_the_definition(tmp_path: Path) -> None:
    file, schema = tmp_path / "a.yaml", tmp_path / "columns.ddl"
    file.write_text("a")
    schema.write_text("id BIGINT")
    watch = FileWatch([tmp_path])
    behind = {file: frozenset({file, schema})}
    watch.know(file, behind[file])
    watch.look(behind)
    schema.write_text("id BIGINT, name STRING")
    assert [watch.look(behind) for _ in range(3)] == [Changes(), Changes(changed=(file,)), Changes()]


def test_watch_of_a_removed_file_tells_it_once_and_again_when_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a")
    watch = watched(tmp_path)
    watch.look({})
    file.unlink()
    assert [watch.look({}) for _ in range(3)] == [Changes(), Changes(removed=(file,)), Changes()]
    file.write_text("a")
    assert [watch.look({}) for _ in range(3)] == [Changes(), Changes(added=(file,)), Changes()]


def test_watch_of_a_file_replaced_by_another_between_two_looks_tells_the_change(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a")
    watch = watched(tmp_path)
    watch.look({})
    file.unlink()
    assert watch.look({}) == Changes()
    file.write_text("b")
    assert [watch.look({}) for _ in range(2)] == [Changes(), Changes(changed=(file,))]


def test_watch_of_a_folder_that_is_away_removes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    watch = watched(folder)
    watch.look({})
    folder.rename(tmp_path / "away")
    assert [watch.look({}) for _ in range(3)] == [Changes()] * 3
    (tmp_path / "away").rename(folder)
    assert [watch.look({}) for _ in range(3)] == [Changes()] * 3
