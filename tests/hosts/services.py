"""What stands on the hosts: three brokers, a schema registry, a database, a Spark master and two workers, each with an
address of its own. All are real processes; the disk is the one thing that they share."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.hosts.network import Network, network
from tests.postgres import PostgresServer

from penstock.devstack.spark_cluster import SparkInstalled
from penstock.spark.jars import broker_classpath, registry_jar
from penstock.spark.java import find_java
from penstock.spark.session import spark_home

DRIVER, WORKERS, BROKERS, REGISTRY, DATABASE = "driver", ("worker1", "worker2"), ("b1", "b2", "b3"), "registry", "db"
NAMES = (DRIVER, *WORKERS, *BROKERS, REGISTRY, DATABASE)
_BROKER, _CONTROLLER, _MASTER, _REGISTRY = 9092, 9093, 7077, 8081
_START_SECONDS = 90
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


class Hosts:
    """The services by their hosts."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.network, self._folder = net, folder
        self._java = find_java()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.database = PostgresServer(folder, host=net.address[DATABASE], within=net.within(DATABASE))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.network.address[name]}:{_BROKER}" for name in BROKERS)

    @property
    def master(self) -> str:
        return f"spark://{self.network.address[DRIVER]}:{_MASTER}"

    @property
    def registry(self) -> str:
        return f"http://{self.network.address[REGISTRY]}:{_REGISTRY}/apis/ccompat/v7"

    def start(self) -> None:
        """All of them, ready."""
        self._start_registry()
        self._start_brokers()
        self._start_spark()
        self.database.start()
        self._await_port(REGISTRY, _REGISTRY)
        self._await_brokers()

    def end(self) -> None:
        """End whatever was started."""
        self.database.close()
        family = [
            each
            for process in self._processes.values()
            if process.poll() is None
            for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True))
        ]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=20)
        for process in self._processes.values():
            process.wait(20)

    def _start_brokers(self) -> None:
        voters = ",".join(
            f"{number}@{self.network.address[name]}:{_CONTROLLER}" for number, name in enumerate(BROKERS, 1)
        )
        for number, name in enumerate(BROKERS, 1):
            folder, address = self._folder / name, self.network.address[name]
            folder.mkdir()
            settings = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"CLIENT://{address}:{_BROKER},CONTROLLER://{address}:{_CONTROLLER}",
                "advertised.listeners": f"CLIENT://{address}:{_BROKER}",
                "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "CLIENT",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": folder / "data",
                "auto.create.topics.enable": "false",
                "default.replication.factor": 3,
                "min.insync.replicas": 2,
                "offsets.topic.num.partitions": 4,
                "transaction.state.log.num.partitions": 4,
                "group.initial.rebalance.delay.ms": 0,
                "broker.session.timeout.ms": 5000,
                "broker.heartbeat.interval.ms": 1000,
                "replica.lag.time.max.ms": 5000,
                "log.cleaner.dedupe.buffer.size": 16 << 20,
            }
            file = folder / "server.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            java = [str(self._java.executable), "-Djava.awt.headless=true", "-cp", broker_classpath()]
            tool = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(file)]
            subprocess.run(tool, check=True, capture_output=True)
            self._start(name, [*java[:1], "-Xms128m", "-Xmx384m", *java[1:], "kafka.Kafka", str(file)])

    def _start_registry(self) -> None:
        settings = {
            "quarkus.http.host": self.network.address[REGISTRY],
            "quarkus.http.port": _REGISTRY,
            "quarkus.datasource.jdbc.url": "jdbc:h2:file:./schemas",
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        self._start(REGISTRY, [str(self._java.executable), "-Xmx384m", *given, "-jar", str(registry_jar())])

    def _start_spark(self) -> None:
        java = [str(self._java.executable), "-Xmx256m", "-cp", f"{spark_home() / 'jars'}/*"]
        deploy, driver = "org.apache.spark.deploy", self.network.address[DRIVER]
        master = [*java, f"{deploy}.master.Master", "--host", driver, "--port", str(_MASTER), "--webui-port", "8090"]
        self._start(DRIVER, master, self._spark_environment(DRIVER))
        self._await_port(DRIVER, _MASTER)
        for name in WORKERS:
            place = ("--host", self.network.address[name], "--cores", "1", "--memory", "1g", "--webui-port", "8091")
            folder = ("--work-dir", str(self._folder / name / "work"))
            worker = [*java, f"{deploy}.worker.Worker", *place, *folder, self.master]
            self._start(name, worker, self._spark_environment(name))

    def _spark_environment(self, name: str) -> dict[str, str]:
        installed = SparkInstalled(spark_home(), self._java.home)
        return {**installed.environment, "SPARK_LOCAL_IP": self.network.address[name]}

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        within = [*self.network.within(name), "env", *(f"{key}={value}" for key, value in (environment or {}).items())]
        with (folder / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*within, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await_port(self, name: str, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((self.network.address[name], port), 2).close()
                return
            self._check(name, deadline)
            time.sleep(0.1)

    def _await_brokers(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=2).brokers) == len(BROKERS):
                    return
            for name in BROKERS:
                self._check(name, deadline)

    def _check(self, name: str, deadline: float) -> None:
        if self._processes[name].poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not start:\n{(self._folder / name / 'log').read_text()[-2000:]}")


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    with network(NAMES) as net:
        made = Hosts(net, folder)
        try:
            made.start()
            yield made
        finally:
            made.end()
