"""The process file, with processes that are no brokers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.devstack import Node, Registry, StackState, read_status, stop_stack
from penstock.devstack.state import load, process_file, save
from penstock.errors import MissingError


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def node(folder: Path, number: int = 1) -> Node:
    made = Node(id=number, port=19091 + number, controller_port=29091 + number, folder=folder / f"node-{number}")
    made.folder.mkdir(exist_ok=True)
    return made


def registry(folder: Path) -> Registry:
    made = Registry(port=18081, folder=folder / "registry")
    made.folder.mkdir(exist_ok=True)
    return made


def test_state_written_is_read_back_whole(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stack = StackState("cluster", (node(tmp_path).as_process(sleeper.pid), node(tmp_path, 2)))
    save(tmp_path, stack)
    assert load(tmp_path) == stack
    assert read_status(tmp_path).brokers == "127.0.0.1:19092,127.0.0.1:19093"


def test_state_with_a_registry_is_read_back_whole(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stack = StackState("cluster", (node(tmp_path),), registry(tmp_path).as_process(sleeper.pid))
    save(tmp_path, stack)
    assert load(tmp_path) == stack
    found = read_status(tmp_path).registry
    assert found is not None
    assert (found.alive, found.url) == (True, "http://127.0.0.1:18081/apis/ccompat/v7")


def test_state_of_a_version_without_registries_is_read(tmp_path: Path) -> None:
    stack = StackState("cluster", (node(tmp_path),))
    save(tmp_path, stack)
    fields = json.loads(process_file(tmp_path).read_text())
    del fields["registry"]
    process_file(tmp_path).write_text(json.dumps(fields))
    assert load(tmp_path) == stack


def test_state_of_an_unused_folder_is_down(tmp_path: Path) -> None:
    assert read_status(tmp_path / "nothing").state == "down"


def test_state_that_is_no_process_file_is_refused(tmp_path: Path) -> None:
    process_file(tmp_path).write_text('{"nodes": 3}')
    with pytest.raises(MissingError) as caught:
        read_status(tmp_path)
    assert caught.value.code == "DEV_STATE_BROKEN"


def test_status_with_one_of_two_processes_is_degraded(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    save(tmp_path, StackState("c", (node(tmp_path).as_process(sleeper.pid), node(tmp_path, 2))))
    assert read_status(tmp_path).state == "degraded"


def test_status_without_its_registry_is_degraded_and_without_its_brokers_down(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    save(tmp_path, StackState("c", (node(tmp_path).as_process(sleeper.pid),), registry(tmp_path)))
    assert read_status(tmp_path).state == "degraded"
    save(tmp_path, StackState("c", (node(tmp_path),), registry(tmp_path).as_process(sleeper.pid)))
    assert read_status(tmp_path).state == "down"


def test_node_whose_process_ended_is_not_alive(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    started = node(tmp_path).as_process(sleeper.pid)
    assert started.alive
    sleeper.kill()
    sleeper.wait()
    assert not started.alive


def test_stop_with_a_recycled_process_id_leaves_the_stranger_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    ours = node(tmp_path).as_process(sleeper.pid)
    assert ours.started is not None
    recycled = replace(ours, started=ours.started - 3600)
    save(tmp_path, StackState("c", (recycled,)))
    stopped = stop_stack(tmp_path)
    assert sleeper.poll() is None
    assert (stopped.ended, stopped.killed, stopped.gone_before) == ([], [], [recycled])


def test_stop_ends_the_process_and_removes_the_folder(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    ours = node(folder).as_process(sleeper.pid)
    save(folder, StackState("c", (ours,)))
    stopped = stop_stack(folder)
    assert stopped.ended == [ours]
    assert stopped.data_removed
    assert not folder.exists()


def test_stop_ends_the_registry_too_and_removes_its_schemas(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    ours = registry(tmp_path).as_process(sleeper.pid)
    save(tmp_path, StackState("c", (node(tmp_path),), ours))
    assert stop_stack(tmp_path).ended == [ours]
    assert not ours.alive
    assert not ours.folder.exists()


def test_stop_keeps_what_the_user_has_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    save(tmp_path, StackState("c", (node(tmp_path),)))
    stop_stack(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_stop_keeping_data_forgets_only_the_process(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    ours, beside = node(tmp_path).as_process(sleeper.pid), registry(tmp_path)
    save(tmp_path, StackState("c", (ours,), replace(beside, pid=2**22 + 1, started=1.0)))
    stop_stack(tmp_path, keep_data=True)
    assert load(tmp_path) == StackState("c", (ours.without_process(),), beside)
    assert ours.folder.is_dir()
    assert beside.folder.is_dir()


def test_stop_of_nothing_does_nothing(tmp_path: Path) -> None:
    stopped = stop_stack(tmp_path / "nothing")
    assert not stopped.data_removed
    assert not (tmp_path / "nothing").exists()
