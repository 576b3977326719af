"""A real standalone cluster of Spark on this machine: a master, and workers that count as machines of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from penstock.devstack import SparkCluster, SparkInstalled
from penstock.devstack.processes import end
from penstock.devstack.spark_cluster import await_workers, lay_out_cluster, start_idle
from penstock.spark.java import find_java
from penstock.spark.session import spark_home


class RunningCluster:
    """A cluster whose workers can be killed and started again."""

    def __init__(self, folder: Path, workers: int, cores: int, memory: str) -> None:
        self._installed = SparkInstalled(spark_home(), find_java().home)
        cluster = lay_out_cluster(folder, None, workers, cores, memory, ())
        assert cluster is not None
        self._cluster: SparkCluster = cluster

    @property
    def url(self) -> str:
        return self._cluster.master.url

    @property
    def worker_numbers(self) -> list[int]:
        return [worker.id for worker in self._cluster.workers]

    def applications(self) -> list[str]:
        """The state of each application that the master has; none where it does not answer."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                body = session.get(f"{self._cluster.master.page}/json/", timeout=5).json()
            except (requests.RequestException, ValueError):
                return []
        return [one["state"] for one in body["activeapps"]]

    def start(self) -> None:
        """Start what is not running."""
        await_workers(self._cluster, start_idle(self._installed, self._cluster, self._keep))

    def stop(self) -> None:
        end([service for service in self._cluster.services if service.alive])

    def kill_worker(self, number: int) -> None:
        """End a worker at once; its executors end when they notice."""
        process = self.worker(number)
        process.kill()
        process.wait(10)

    def kill_master(self) -> None:
        """End the master at once; the executors go on."""
        process = self.master()
        process.kill()
        process.wait(10)

    def master(self) -> psutil.Process:
        """The process of the master."""
        process = self._cluster.master.process()
        assert process is not None
        return process

    def worker(self, number: int) -> psutil.Process:
        """The process of a worker."""
        process = next(one for one in self._cluster.workers if one.id == number).process()
        assert process is not None
        return process

    def executors(self, number: int | None = None) -> list[psutil.Process]:
        """The executors that run now, of all workers or of one."""
        found = []
        for worker in self._cluster.workers:
            process = worker.process() if number in (None, worker.id) else None
            for child in process.children() if process is not None else ():
                if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                    found.append(child)
        return found

    def executor_logs(self) -> str:
        """What every executor and its Python workers have said on their error streams."""
        logs = [log for worker in self._cluster.workers for log in worker.folder.glob("work/*/*/stderr")]
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def _keep(self, cluster: SparkCluster) -> None:
        self._cluster = cluster


@contextmanager
def running_cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[RunningCluster]:
    cluster = RunningCluster(folder, workers, cores, memory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
