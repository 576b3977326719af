"""The servers that tests share, one of each for a worker; each test has its own topics, tables and checkpoint."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import SparkSession
    from tests.azure_server import AzureServer
    from tests.hdfs_server import HdfsServer
    from tests.postgres import PostgresServer
    from tests.registry import RegistryServer
    from tests.s3_server import S3Server
    from tests.spark_cluster import RunningCluster

    from penstock.devstack import DevStack

pytest_plugins = ("tests.work_queue",)

_numbers = itertools.count()

# How long an example takes is the machine's, and no matter of what it shows.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

# A shell in the background starts its jobs with SIGINT ignored, and children inherit that: a Ctrl-C could not be tried.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whatever asks for an object store without saying which, asks on loopback, and never for the role of a machine.
os.environ.update(
    AWS_ENDPOINT_URL="http://127.0.0.1:9",
    AWS_REGION="eu-test-1",
    AWS_ACCESS_KEY_ID="nobody",
    AWS_SECRET_ACCESS_KEY="nothing",
    AWS_EC2_METADATA_DISABLED="true",
)

# The JVMs of tests, also those of commands, are too short-lived for the C2 compiler to pay off.
for variable in ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
    os.environ.setdefault(variable, "-XX:TieredStopAtLevel=1")

_UNIT = Path(__file__).with_name("unit")
_HANDLERS_OF_COMMANDS = (logging.StreamHandler, logging.NullHandler)
_JAVA = frozenset({"java", "spark-submit"})
_NO_JAVA = "-XX:StartedByATestThatIsNotMarkedServices"
"""As JDK_JAVA_OPTIONS it keeps every Java from starting: it prints the option, which it does not know, and ends."""
_running: pytest.Item | None = None
"""The test that runs now, where it may start no Java."""


def _refuse_java(event: str, words: tuple[Any, ...]) -> None:
    """An audit hook: a test that is not marked `services` starts no Java but a stand-in of its own."""
    if event != "subprocess.Popen" or _running is None or Path(os.fsdecode(words[0])).name not in _JAVA:
        return
    own = getattr(_running, "funcargs", {}).get("tmp_path")
    if own is None or not Path(os.fsdecode(words[0])).is_relative_to(own):
        pytest.fail(f"{_running.name} starts {words[0]}: mark it `services`, so that `make test-quick` leaves it out")


sys.addaudithook(_refuse_java)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--master",
        choices=("local", "cluster"),
        default="local",
        help="cluster: Spark runs on a standalone cluster of two workers, as far as the tests start it themselves",
    )
    parser.addoption("--seed", type=int, default=1000, help="the first seed of the histories of operators")
    parser.addoption("--histories", type=int, default=20, help="how many histories of operators are played")
    parser.addoption("--update", action="store_true", help="write the expected texts of the tests anew")
    parser.addoption("--play", help='one history of operators, as a failure prints it: "send 3 1; run; edit; run"')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever takes a server is marked so: `make test-quick` leaves it out."""
    from tests.work_queue import servers_of

    for item in items:
        if servers_of(item):
            item.add_marker(pytest.mark.services)


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and tests live until the end of the run: keep the garbage collector from scanning them every time."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep a test without servers from starting Java, itself or by another process."""
    global _running
    if item.get_closest_marker("services") is not None or item.get_closest_marker("long") is not None:
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", _NO_JAVA)
        _running = item
        try:
            return (yield)
        finally:
            _running = None


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with the file that holds the expected one; with `--update` writes it there."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--update"):
            file.write_text(text)
        assert text == file.read_text()

    return compare


@pytest.fixture(autouse=True, scope="module")
def no_clients_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kafka clients in cycles are closed when these are found: a whole suite has too many descriptors otherwise."""
    yield
    if _UNIT not in request.path.parents:
        gc.collect()


@pytest.fixture(autouse=True)
def no_log_handlers_left() -> Iterator[None]:
    """A command that runs in this process adds a handler to the root logger; its stream is closed after the test."""
    yield
    log = logging.getLogger()
    log.handlers[:] = [found for found in log.handlers if type(found) not in _HANDLERS_OF_COMMANDS]


@pytest.fixture(scope="session", autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What runs of the user have left at home is nothing to a test, and the other way round."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A standalone cluster of Spark with two workers of one core; of more where several applications run beside."""
    from tests.spark_cluster import running_cluster

    room = {"cores": 3, "memory": "4g"} if request.config.getoption("--master") == "cluster" else {}
    with running_cluster(tmp_path_factory.mktemp("cluster"), **room) as running:
        yield running


@pytest.fixture(scope="session")
def master(request: pytest.FixtureRequest) -> str | None:
    """What `--master` asks for; none for local Spark."""
    return request.getfixturevalue("cluster").url if request.config.getoption("--master") == "cluster" else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, master: str | None) -> Iterator[SparkSession]:
    from penstock.spark.session import start_session, stop_session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = tmp_path_factory.mktemp("spark")
    session = start_session(
        "penstock tests",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            # As in a fleet, whose pipelines have each a pool; one alone has all of it.
            "spark.scheduler.mode": "FAIR",
            # So that the jars of S3A are there; which server is meant a test says itself.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.delta.logStore.s3.impl": "io.penstock.storage.ConditionalLogStore",
            **on_cluster(master),
        },
        tables=True,
        light=True,
        log=folder / "spark.log",
    )
    yield session
    stop_session(session)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Any:
    """The stand-in for Spark, unless a mark of tests/sessions.py asks for Spark."""
    from tests.local_spark import LocalSession

    return request.getfixturevalue("spark") if getattr(request, "param", "local") == "spark" else LocalSession()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    from penstock.devstack import DevStack
    from penstock.spark.jars import broker_classpath
    from penstock.spark.java import find_java

    folder = tmp_path_factory.mktemp("dev")
    stack = DevStack(folder, java=find_java().executable, classpath=broker_classpath(), brokers=1)
    try:
        stack.start()
        yield stack
        # A broker takes seconds to end in order, and every worker would wait for its own at the end of the run.
        stack.kill(stack.nodes[0].id)
    finally:
        stack.stop()


class Topics:
    """Makes topics with names of their own and fills them."""

    def __init__(self, brokers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.brokers = brokers
        self.admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
        self._producer = self._new_producer()
        self._partitions: dict[str, int] = {}

    def create(self, partitions: int = 1, prefix: str = "t", **settings: str) -> str:
        from confluent_kafka.admin import NewTopic

        name = f"{prefix}-{os.getpid()}-{next(_numbers)}"
        topic = NewTopic(name, partitions, 1, config=settings)
        for future in self.admin.create_topics([topic]).values():
            future.result(30)
        self.wait_for(name, partitions)
        return name

    def delete(self, name: str) -> None:
        """Delete a topic if there is one, and wait until the broker has forgotten it."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + 30
        while name in self.admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"the broker keeps the topic {name}"
            for future in self.admin.delete_topics([name]).values():
                with suppress(KafkaException):
                    future.result(30)

    def create_again(self, name: str, partitions: int) -> None:
        """Delete a topic and make another one of the same name."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        self.admin.delete_topics([name])[name].result(30)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
                break
            except KafkaException:
                # The broker knows the old one for a moment longer.
                if time.monotonic() > deadline:
                    raise
        self.wait_for(name, partitions)

    def wait_for(self, topic: str, partitions: int) -> None:
        """Until the broker tells of that many partitions, each with a leader.

        A topic that was known before has grown or was created again. The producer is closed, since it would go on with
        the partitions and sequence numbers of before.
        """
        if topic in self._partitions:
            self._producer = self._new_producer()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
                self._partitions[topic] = partitions
                return
        raise TimeoutError(topic)

    def send(self, topic: str, values: list[Any], partition: int | None = None, **more: Any) -> None:
        """Values as JSON, unless they are bytes or None already; round robin where no partition is named."""
        failed: list[Any] = []
        producer, partitions = self._producer, self._partition_count(topic)
        for number, value in enumerate(values):
            body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            where = number % partitions if partition is None else partition
            producer.produce(
                topic, body, partition=where, on_delivery=lambda e, _: failed.append(e) if e else None, **more
            )
            producer.poll(0)
        left = producer.flush(120)
        if failed or left:
            self._producer = self._new_producer()
        assert not failed and not left, (failed, left)

    def _new_producer(self) -> Producer:
        """Idempotent, so that a repeated try keeps its place: tests count on offsets."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.brokers, "linger.ms": 5, "log_level": 0, "enable.idempotence": True}
        # Room for every value of a call: a slow broker must not fill the queue.
        return Producer({**settings, "queue.buffering.max.messages": 1_000_000})

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)
        return self._partitions[topic]


@pytest.fixture(scope="session")
def topics(stack: DevStack) -> Topics:
    return Topics(stack.bootstrap)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A real PostgreSQL server, which does not wait for the disk. Every test has its own database."""
    from tests.postgres import running_server

    with running_server(tmp_path_factory.mktemp("postgres"), fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, which can be told to misbehave. Every test has its own bucket, and leaves it calm."""
    from tests.s3_server import ACCESS_KEY, SECRET_KEY, running_s3

    os.environ["TEST_S3_ACCESS_KEY"], os.environ["TEST_S3_SECRET_KEY"] = ACCESS_KEY, SECRET_KEY
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """A real server of Azure's blobs. Every test has its own bucket."""
    from tests.azure_server import KEY, running_azure

    os.environ["TEST_AZURE_KEY"] = KEY
    with running_azure(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """A real HDFS. Every test has its own folder."""
    from tests.hdfs_server import running_hdfs

    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real schema registry: `url`, `kill()`, `restart()`. Every test has its own subjects; schemas survive a kill."""
    from tests.registry import running_registry

    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


COLUMNS = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP"


@pytest.fixture
def pipeline_file(tmp_path: Path, stack: DevStack) -> Callable[..., Path]:
    """Writes a pipeline file; keyword arguments replace or add top-level keys, None removes one; `source` is merged."""

    def write(topic: str, name: str = "orders", folder: Path = tmp_path, **keys: Any) -> Path:
        import yaml

        source = {"type": "kafka", "brokers": stack.bootstrap, "topics": [topic], "start": "earliest"}
        given = keys.pop("source", {})
        if given is not None and ("pattern" in given or "assign" in given):
            del source["topics"]
        body: dict[str, Any] = {
            "name": name,
            "source": None if given is None else {**source, **given},
            "decode": {"format": "json", "schema": COLUMNS},
            "quarantine": {"table": "lake/quarantine"},
            "sinks": [{"name": "out", "type": "delta", "path": "lake/out", "mode": "append"}],
            "checkpoint": "checkpoints/orders",
            "trigger": {"available_now": True},
        }
        body.update(keys)
        body = {key: value for key, value in body.items() if value is not None}
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False))
        return file

    return write


def on_cluster(master: str | None) -> dict[str, str]:
    """The settings of Spark for a master; the modules of the tests are found there too."""
    if master is None:
        return {}
    # An application takes all the cores that it can get, and the next one would wait for it.
    room = {"spark.cores.max": "2"}
    return {"spark.master": master, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]), **room}
