"""Spark beside the brokers: a standalone master and its workers, all on loopback.

Enters: the folder of an installed Spark and a Java home. Leaves: a master that counts every worker as alive. A master
on loopback has workers on this machine alone: they see the same disk and the same Python as whoever submits. They talk
to nobody who does not know the secret of the cluster, a new one for each.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.devstack.processes import answer_of, free_ports, is_free, log_context, put, spawn, wait_until_ready
from penstock.devstack.state import Service, SparkCluster, SparkMaster, SparkWorker
from penstock.errors import MissingError

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
        # The first setting is not for Spark: it is how its process is told from that of another stack.
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
    """The cluster to be: the one that is there, or as many workers as are wanted or were there, on free ports.

    What has ended comes back on its ports, where they are free: a driver may still wait for its master there.
    """
    if previous is not None and workers in (None, len(previous.workers)) and _can_come_back(previous):
        return previous
    if previous is not None and previous.master.alive:
        raise MissingError(
            "DEV_STACK_DIFFERS",
            f"starting a Spark cluster in {folder}: there is another one",
            context={"there": f"{len(previous.workers)} workers, running", "wanted": f"{workers} workers"},
            hint="take the stack down first: penstock dev down\nor name another folder: --dir DIR",
        )
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
    """Start what is not running, and have each written down as soon as it is there."""
    children: dict[Service, subprocess.Popen[bytes]] = {}
    settings = _authenticated(cluster)
    for one in (service for service in cluster.services if not service.alive):
        child = _start(spark, cluster.master.url, one, settings)
        children[one] = child
        cluster = cluster.with_service(one.as_process(child.pid))
        keep(cluster)
    return children


def _authenticated(cluster: SparkCluster) -> Path:
    """The settings by which the cluster talks to nobody without its secret: in a file, since all see a command line.

    `penstock.spark.security` finds it there, for drivers of the same user.
    """
    file = cluster.master.folder / "spark.conf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            # It would run what anybody sends it, and Spark does not start it beside a secret.
            "spark.master.rest.enabled": "false",
        }
        put(file, "".join(f"{name} {value}\n" for name, value in settings.items()))
    return file


def _start(spark: SparkInstalled, url: str, service: SparkMaster, settings: Path) -> subprocess.Popen[bytes]:
    """A worker may come before its master: it asks again until that answers."""
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

    wait_until_ready(cluster.master, children, ready, START_TIMEOUT_SECONDS, _died, "not every worker was there")


def _alive_workers(master: SparkMaster) -> int:
    """How many workers the master counts; none where it does not answer."""
    answer = answer_of(f"{master.page}/json/")
    try:
        return int(answer.json()["aliveworkers"]) if answer is not None else 0
    except (ValueError, KeyError):
        return 0


def _died(service: Service, what: str) -> MissingError:
    return MissingError(
        "SPARK_CLUSTER_NOT_STARTED",
        f"starting {service.folder.name} on port {service.port}: {what}",
        context=log_context(service.log),
        hint="everything that was started has been ended; `penstock dev down` removes the data as well",
    )


def _host(number: int) -> str:
    """An address on loopback for each worker: Spark starts a second attempt of a task on another host alone."""
    return f"127.0.0.{number + 1}" if sys.platform == "linux" else "127.0.0.1"
