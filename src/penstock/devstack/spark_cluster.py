"""The Spark cluster of a stack: a standalone master and its workers, all on loopback.

In: the folder of an installed Spark and a Java home. Out: a master with which every worker is registered. A master on
loopback only has workers on this machine: they see the same disk and the same Python as the driver. Each cluster has
a new secret, and only accepts processes that know it.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.devstack.processes import answer_of, free_ports, is_free, put, spawn, stack_differs, wait_until_ready
from penstock.devstack.state import Service, SparkCluster, SparkMaster, SparkWorker

START_TIMEOUT_SECONDS = 60
_MASTER = "org.apache.spark.deploy.master.Master"
_LOGGING = Path(__file__).with_name("log4j2.properties")
# They only hand out executors, each of which is a process of its own.
_JVM = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")


@dataclass(frozen=True, slots=True)
class SparkInstalled:
    """Where Spark is, and the Java that runs it and its executors."""

    home: Path
    java_home: Path

    def command(self, service: Service, *words: str) -> list[str]:
        """A Spark service in a JVM of its own."""
        java = str(self.java_home / "bin" / "java")
        # The first setting is not for Spark: it identifies the stack that the process belongs to.
        settings = (f"-Dpenstock.stack={service.folder}", f"-Dlog4j2.configurationFile={_LOGGING}")
        quiet = ("-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true")
        return [java, *_JVM, *settings, *quiet, "-cp", f"{self.home / 'jars'}/*", *words]

    @property
    def environment(self) -> dict[str, str]:
        """What the services need to start executors."""
        # The Scala version is what Spark's own scripts would find out; a worker builds its executors' commands by it.
        [core] = (self.home / "jars").glob("spark-core_*.jar")
        scala = core.name.removeprefix("spark-core_").partition("-")[0]
        return {"SPARK_HOME": str(self.home), "JAVA_HOME": str(self.java_home), "SPARK_SCALA_VERSION": scala}


def lay_out_cluster(
    folder: Path, previous: SparkCluster | None, workers: int | None, cores: int, memory: str, taken: Sequence[int]
) -> SparkCluster | None:
    """The wanted cluster: the existing one, or a new one with the requested or former number of workers.

    Stopped services come back on their ports if these are free: a driver may still wait for its master there.
    """
    if previous is not None and workers in (None, len(previous.workers)) and _can_come_back(previous):
        return previous
    if previous is not None and previous.master.alive:
        there = f"{len(previous.workers)} workers, running"
        raise stack_differs(f"starting a Spark cluster in {folder}", there, f"{workers} workers")
    if workers is None and previous is None:
        return None
    count = workers if workers is not None or previous is None else len(previous.workers)
    assert count is not None
    ports = free_ports(2 + 2 * count, taken)
    if previous is not None and workers is None:
        cores, memory = previous.workers[0].cores, previous.workers[0].memory
    return SparkCluster(
        SparkMaster(folder=folder / "spark-master", port=ports[0], page_port=ports[1]),
        tuple(
            SparkWorker(
                folder=folder / f"spark-worker-{number}",
                port=ports[2 * number],
                page_port=ports[2 * number + 1],
                host=_host(number),
                id=number,
                cores=cores,
                memory=memory,
            )
            for number in range(1, count + 1)
        ),
    )


def _can_come_back(cluster: SparkCluster) -> bool:
    return all(is_free(port) for one in cluster.services if not one.alive for port in (one.port, one.page_port))


def start_idle(
    spark: SparkInstalled, cluster: SparkCluster, keep: Callable[[SparkCluster], None]
) -> dict[Service, subprocess.Popen[bytes]]:
    """Start what is not running; `keep` records each process as soon as it exists."""
    children: dict[Service, subprocess.Popen[bytes]] = {}
    settings = _authenticated(cluster)
    for one in (service for service in cluster.services if not service.alive):
        child = _start(spark, cluster.master.url, one, settings)
        children[one] = child
        cluster = cluster.with_service(one.as_process(child.pid))
        keep(cluster)
    return children


def _authenticated(cluster: SparkCluster) -> Path:
    """The settings with the secret of the cluster: in a file, as every user can see command lines.

    `penstock.spark.security` finds it there, for drivers of the same user.
    """
    file = cluster.master.folder / "spark.conf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            # It would run whatever is sent to it, and Spark refuses to start it together with a secret.
            "spark.master.rest.enabled": "false",
        }
        put(file, "".join(f"{name} {value}\n" for name, value in settings.items()))
    return file


def _start(spark: SparkInstalled, url: str, service: SparkMaster, settings: Path) -> subprocess.Popen[bytes]:
    """Start a service. A worker may start before its master: it retries until that answers."""
    listens = ("--host", service.host, "--port", str(service.port), "--webui-port", str(service.page_port))
    at = (*listens, "--properties-file", str(settings))
    # A master that comes back knows the applications that were running, by a file.
    remembered = f"-Dspark.deploy.recoveryDirectory={service.folder / 'remembered'}"
    words: tuple[str, ...] = ("-Dspark.deploy.recoveryMode=FILESYSTEM", remembered, _MASTER, *at)
    if isinstance(service, SparkWorker):
        gives = ("--cores", str(service.cores), "--memory", service.memory, "--work-dir", str(service.folder / "work"))
        words = ("org.apache.spark.deploy.worker.Worker", *at, *gives, url)
    return spawn(spark.command(service, *words), service, {**spark.environment, "SPARK_LOCAL_IP": service.host})


def await_workers(cluster: SparkCluster, children: Mapping[Service, subprocess.Popen[bytes]]) -> None:
    """Wait until the master counts every worker; raise if one of them ends before, or it takes too long."""

    def ready() -> bool:
        return _alive_workers(cluster.master) >= len(cluster.workers)

    wait_until_ready(cluster.master, children, ready, START_TIMEOUT_SECONDS, "not every worker registered")


def _alive_workers(master: SparkMaster) -> int:
    """The number of registered workers; 0 if the master does not answer."""
    answer = answer_of(f"{master.page}/json/")
    try:
        return int(answer.json()["aliveworkers"]) if answer is not None else 0
    except (ValueError, KeyError):
        return 0


def _host(number: int) -> str:
    """A loopback address for each worker: Spark only starts a second attempt of a task on another host."""
    return f"127.0.0.{number + 1}" if sys.platform == "linux" else "127.0.0.1"
