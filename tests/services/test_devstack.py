"""The dev stack with real brokers: up, down, and everything that may go wrong in between."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.cli.command import command

from penstock.devstack import DevStack, read_status, servers, stop_stack
from penstock.devstack import stack as stack_module
from penstock.devstack.processes import free_ports, kill
from penstock.errors import MissingError
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

pytestmark = pytest.mark.services

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def stack_in(folder: Path, brokers: int | None = None, port: int | None = None) -> DevStack:
    return DevStack(folder, java=find_java().executable, classpath=broker_classpath(), brokers=brokers, port=port)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process on the machine whose command line names the folder's brokers, registry or Spark."""
    own = (f"{folder}/node-", f"-Dpenstock.stack={folder}/")
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(own) for word in process.info["cmdline"] or [])
    ]


def penstock(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command that starts something, as a process: what it starts outlives it."""
    words = (PENSTOCK, "dev", *words, "--dir", str(folder))
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def asked(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One that starts nothing, within this process."""
    return command("dev", *words, "--dir", str(folder), folder=folder.parent)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def can_produce(bootstrap: str, topic: str) -> bool:
    delivered: list[bool] = []
    settings = {"allow.auto.create.topics": "true", "topic.metadata.propagation.max.ms": 500}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error is None))
    producer.flush(3)
    return delivered == [True]


def test_commands_up_status_up_again_down_tell_one_story(tmp_path: Path) -> None:
    folder, [port] = tmp_path / "dev", free_ports(1)
    try:
        first = penstock("up", "--port", str(port), folder=folder)
        assert first.returncode == 0, first.stderr
        assert f"127.0.0.1:{port}" in first.stdout

        told = json.loads(asked("status", "--json", folder=folder).stdout)
        assert told["brokers"] == f"127.0.0.1:{port}"
        assert (told["state"], told["registry"], told["dir"]) == ("up", None, str(folder))
        assert [node["alive"] for node in told["nodes"]] == [True]
        assert [service["name"] for service in told["services"]] == ["broker 1"]
        assert told["nodes"][0]["log"] in asked("status", folder=folder).stdout, "it can be copied"
        topics = AdminClient({"bootstrap.servers": told["brokers"]}).list_topics(timeout=10).topics
        assert topics == {}, "readiness leaves no topic behind"
        assert not can_produce(told["brokers"], "misspelt"), "topics are not made by accident"

        other = asked("up", "--brokers", "3", folder=folder)
        assert other.returncode == 3
        assert "DEV_STACK_DIFFERS" in other.stderr

        ended = asked("down", folder=folder)
        assert ended.returncode == 0, ended.stderr
        assert "1 broker ended" in ended.stdout
        assert not folder.exists()
        assert processes_of(folder) == []
        assert "nothing was running" in asked("down", folder=folder).stdout
    finally:
        stop_stack(folder)


@pytest.mark.long
def test_commands_add_a_registry_to_a_stack_that_is_up_and_bring_it_back_with_its_schemas(tmp_path: Path) -> None:
    folder, (port, registry_port) = tmp_path / "dev", free_ports(2)
    try:
        assert penstock("up", "--port", str(port), folder=folder).returncode == 0
        registry_joins_goes_and_comes_back(folder, registry_port)
        ended = penstock("down", folder=folder)
        assert ended.returncode == 0, ended.stderr
        assert "1 broker and the registry ended" in ended.stdout
        assert not folder.exists()
        assert processes_of(folder) == []
    finally:
        stop_stack(folder)


def registry_joins_goes_and_comes_back(folder: Path, port: int) -> None:
    added = penstock("up", "--registry", "--registry-port", str(port), folder=folder)
    assert added.returncode == 0, added.stderr
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    assert "Kafka is already up" in added.stdout
    assert url in added.stdout
    told = json.loads(asked("status", "--json", folder=folder).stdout)
    assert (told["state"], told["registry"]) == ("up", url)
    assert [service["name"] for service in told["services"]] == ["broker 1", "registry"]
    schema_id = registered(url)

    again = asked("up", folder=folder)
    assert again.returncode == 0, again.stderr
    assert "Kafka is already up" in again.stdout
    assert f"The schema registry is already up: {url}" in again.stdout
    other = asked("up", "--registry", "--registry-port", str(free_ports(1)[0]), folder=folder)
    assert (other.returncode, "DEV_STACK_DIFFERS" in other.stderr) == (3, True)

    registry = read_status(folder).registry
    assert registry is not None
    kill([registry])
    told = json.loads(asked("status", "--json", folder=folder).stdout)
    assert (told["state"], told["registry"]) == ("degraded", None)
    assert "The schema registry is down" in asked("status", folder=folder).stdout
    back = penstock("up", folder=folder)
    assert back.returncode == 0, back.stderr
    assert requests.get(f"{url}/schemas/ids/{schema_id}", timeout=30).json()["schema"] == '"string"'


def registered(url: str, subject: str = "s") -> int:
    answer = requests.post(f"{url}/subjects/{subject}/versions", json={"schema": '"string"'}, timeout=30)
    return int(answer.json()["id"])


def test_up_with_a_taken_port_names_it_and_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as server:
        port = server.getsockname()[1]
        refused = asked("up", "--port", str(port), folder=tmp_path)
    assert refused.returncode == 3
    assert "PORT_TAKEN" in refused.stderr
    assert str(port) in refused.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.long
def test_up_after_the_broker_was_killed_recovers_with_its_data(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    stack = stack_in(tmp_path, port=port)
    stack.start()
    try:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
        stack.kill(1)
        assert read_status(tmp_path).state == "down"
        recovered = penstock("up", "--port", str(port), folder=tmp_path)
        assert recovered.returncode == 0, recovered.stderr
        assert "restarting on their data" in " ".join(recovered.stderr.split())
        assert "kept" in admin.list_topics(timeout=10).topics
        assert can_produce(stack.bootstrap, "kept")
    finally:
        stop_stack(tmp_path)
    assert processes_of(tmp_path) == []


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, MissingError]]:
    """The folder of a stack that was given up, for it took too long to start, with its data; and the error."""
    folder = tmp_path_factory.mktemp("late")
    started = servers.start_broker
    with pytest.MonkeyPatch.context() as patched, pytest.raises(MissingError) as caught:

        def start_broker(*given: Any) -> subprocess.Popen[bytes]:
            patched.setattr(stack_module, "START_TIMEOUT_SECONDS", 0.2)
            return started(*given)

        # Its storage is prepared in good time.
        patched.setattr(servers, "start_broker", start_broker)
        stack_in(folder).start()
    yield folder, caught.value
    stop_stack(folder)


def test_start_that_takes_too_long_ends_everything(late: tuple[Path, MissingError]) -> None:
    folder, error = late
    assert "no client could produce" in error.summary
    assert processes_of(folder) == []


def test_start_of_a_broker_that_dies_shows_its_log_and_leaves_no_process(late: tuple[Path, MissingError]) -> None:
    folder, _ = late
    meta = folder / "node-1" / "data" / "meta.properties"
    good = meta.read_text()
    meta.write_text(good.replace("node.id=1", "node.id=99"))
    with pytest.raises(MissingError) as caught:
        stack_in(folder).start()
    meta.write_text(good)
    assert caught.value.code == "BROKER_NOT_STARTED"
    assert "99" in caught.value.context["its last lines"]
    assert Path(caught.value.context["log"]).is_file()
    assert processes_of(folder) == []


def test_start_with_storage_that_cannot_be_prepared_says_so(tmp_path: Path) -> None:
    stack = DevStack(tmp_path, java=find_java().executable, classpath=str(tmp_path / "no-jars"))
    with pytest.raises(MissingError) as caught:
        stack.start()
    assert caught.value.code == "BROKER_NOT_STARTED"
    assert "StorageTool" in caught.value.context["its last lines"]


@pytest.mark.long
def test_three_brokers_survive_the_loss_of_one(tmp_path: Path) -> None:
    with stack_in(tmp_path / "dev", brokers=3) as stack:
        assert len(stack.bootstrap.split(",")) == 3
        admin = AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result()
        stack.kill(2)
        assert read_status(stack.folder).state == "degraded"
        wait_for(lambda: can_produce(stack.bootstrap, "t"))
        stack.restart(2)
        assert read_status(stack.folder).state == "up"
    assert processes_of(tmp_path / "dev") == []


def test_registry_with_a_taken_port_names_it_and_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as server:
        port = server.getsockname()[1]
        words = ("up", "--port", str(free_ports(1)[0]), "--registry", "--registry-port", str(port))
        refused = asked(*words, folder=tmp_path)
    assert refused.returncode == 3
    assert f"PORT_TAKEN starting the schema registry: port {port} is taken" in refused.stderr
    assert "--registry-port" in refused.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.long
def test_registry_that_does_not_come_up_shows_its_log_and_leaves_the_running_broker(tmp_path: Path) -> None:
    with stack_in(tmp_path / "dev") as stack:
        broken = DevStack(
            stack.folder, java=find_java().executable, classpath=broker_classpath(), registry_jar=tmp_path / "no.jar"
        )
        with pytest.raises(MissingError) as caught:
            broken.start()
        assert caught.value.code == "REGISTRY_NOT_STARTED"
        assert "no.jar" in caught.value.context["its last lines"]
        assert [process.pid for process in processes_of(stack.folder)] == [stack.nodes[0].pid]
        assert read_status(stack.folder).state == "degraded"
    assert processes_of(tmp_path / "dev") == []


def test_registry_port_without_a_registry_is_refused(tmp_path: Path) -> None:
    refused = asked("up", "--registry-port", "28081", folder=tmp_path)
    assert refused.returncode == 2
    assert "--registry" in refused.stderr


@pytest.mark.long
def test_up_with_workers_adds_a_spark_cluster_that_goes_down_with_the_stack(tmp_path: Path) -> None:
    folder, port = tmp_path / "dev", free_ports(1)[0]
    try:
        up = penstock("up", "--port", str(port), "--workers", "2", folder=folder)
        assert up.returncode == 0, up.stderr
        told = json.loads(asked("status", "--json", folder=folder).stdout)
        assert told["spark"] in up.stdout
        assert told["spark"].startswith("spark://127.0.0.1:")
        assert "with 2 workers, 2 cores" in up.stdout
        assert len(processes_of(folder)) == 4

        other = asked("up", "--workers", "3", folder=folder)
        assert (other.returncode, "DEV_STACK_DIFFERS" in other.stderr) == (3, True)
        spark = read_status(folder).spark
        assert spark is not None
        kill([spark.workers[0]])
        assert json.loads(asked("status", "--json", folder=folder).stdout)["state"] == "degraded"
        back = penstock("up", folder=folder)
        assert back.returncode == 0, back.stderr
        assert f"{told['spark']} with 2 workers, 2 cores" in back.stdout

        ended = penstock("down", folder=folder)
        assert "1 broker and Spark ended" in ended.stdout, ended.stderr
        assert processes_of(folder) == []
        assert not folder.exists()
    finally:
        stop_stack(folder)
