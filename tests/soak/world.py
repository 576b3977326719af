"""What the soak runs on: three brokers, a Spark cluster of two workers, PostgreSQL, an S3 server, small disks.

All are real processes on loopback. As root the soak has a network and mounts of its own, so that links can be cut and
disks filled, and both are gone with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.crash.cluster import Brokers
from tests.crash.harness import wait_for
from tests.postgres import PostgresServer, running_server
from tests.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
from tests.soak.links import prepare_network
from tests.spark_cluster import RunningCluster, running_cluster

from penstock.devstack import DevStack
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

APART = "PENSTOCK_SOAK_APART"
RUN = "PENSTOCK_TEST_RUN"
_DISK = "3g"


@dataclass
class World:
    """The services, by what the faults do to them."""

    folder: Path
    stack: DevStack
    brokers: Brokers
    cluster: RunningCluster
    postgres: PostgresServer
    database: str
    s3: S3Server
    bucket: str
    apart: bool
    """Whether links and disks are the soak's own."""

    @property
    def database_url(self) -> str:
        return self.postgres.url(self.database)

    def keep_brokers(self) -> None:
        """Start the brokers that are gone again, and wait until every partition is on all three."""
        for node in self.stack.nodes:
            if not node.alive:
                self.stack.restart(node.id)
        self.brokers.await_in_sync()


@contextlib.contextmanager
def world(folder: Path, disks: Sequence[Path]) -> Iterator[World]:
    """Everything up; ended afterwards. Of `disks` each is one of its own, where that can be."""
    os.environ["TEST_S3_ACCESS_KEY"], os.environ["TEST_S3_SECRET_KEY"] = ACCESS_KEY, SECRET_KEY
    apart = APART in os.environ
    java, classpath = find_java().executable, broker_classpath()
    with contextlib.ExitStack() as open_:
        if apart:
            for place in (*disks, broker_disk(folder)):
                open_.enter_context(disk(place))
        stack = open_.enter_context(DevStack(folder / "kafka", java=java, classpath=classpath, brokers=3))
        cluster = open_.enter_context(running_cluster(folder / "spark"))
        postgres = open_.enter_context(running_server(folder))
        s3 = open_.enter_context(running_s3(folder))
        yield World(
            folder=folder,
            stack=stack,
            brokers=Brokers(stack),
            cluster=cluster,
            postgres=postgres,
            database=postgres.create_database(),
            s3=s3,
            bucket=s3.bucket(),
            apart=apart,
        )


def broker_disk(folder: Path) -> Path:
    """The folder of the third broker."""
    return folder / "kafka" / "node-3"


def go_apart(words: Sequence[str]) -> str | None:
    """Run this program again with a network and mounts of its own; returns only where that cannot be: why."""
    if APART in os.environ:
        prepare_network()
        return None
    if os.geteuid() != 0:
        return "it is not run as root"
    missing = [name for name in ("unshare", "ip", "mount") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this machine makes no namespaces"
    os.environ[APART] = "1"
    return os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *words])


@contextlib.contextmanager
def disk(place: Path) -> Iterator[None]:
    """A disk of its own, in memory."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@contextlib.contextmanager
def full(place: Path) -> Iterator[None]:
    """A disk without room: it is made as small as what is on it, with some tries, since that may grow meanwhile."""

    def shrink() -> bool:
        there = os.statvfs(place)
        used = (there.f_blocks - there.f_bfree) * there.f_frsize
        words = ["mount", "-o", f"remount,size={used}", str(place)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    try:
        wait_for(shrink, 10, f"{place} is full")
        yield
    finally:
        subprocess.run(["mount", "-o", f"remount,size={_DISK}", str(place)], check=True)


def end_all(run: str) -> list[str]:
    """End whatever was started with the id of this run; what had to be ended."""
    left: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            ours = process.pid != os.getpid() and process.environ().get(RUN) == run
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    # Some end by themselves when what they belong to has ended; they have a moment.
    _, stubborn = psutil.wait_procs(left, timeout=10)
    told: list[str] = []
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            told.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
            process.kill()
    psutil.wait_procs(stubborn, timeout=10)
    return told
