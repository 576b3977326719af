"""A real HDFS on loopback: a name node and a data node, each a process of its own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.running import wait_for

from penstock.devstack.processes import free_ports
from penstock.spark.jars import jar_folder
from penstock.spark.java import find_java
from penstock.spark.session import spark_home

_SERVERS = "org.apache.hadoop.hdfs.server"
_NAME_NODE, _DATA_NODE = f"{_SERVERS}.namenode.NameNode", f"{_SERVERS}.datanode.DataNode"
# What the servers need beside their own jar is there with Spark.
_BESIDE = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j", "log4j-")
_numbers = itertools.count()


class HdfsServer:
    """The file system as tests see it. A bucket is a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, *others = free_ports(5)
        self._write_settings(others)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def root(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def bucket(self) -> str:
        """A new one."""
        return f"bucket-{next(_numbers)}-{time.time_ns() % 10**9}"

    def uri(self, bucket: str, path: str) -> str:
        """A place in a bucket as a pipeline file names it."""
        return f"{self.root}/{bucket}/{path}"

    def arrow(self) -> Any:
        """Another client than Penstock's own way of using it, below the root."""
        from hdfs_native.fsspec import HdfsFileSystem
        from pyarrow.fs import FSSpecHandler, PyFileSystem, SubTreeFileSystem

        return SubTreeFileSystem("/", PyFileSystem(FSSpecHandler(HdfsFileSystem("127.0.0.1", self.port))))

    def keys(self, bucket: str) -> list[str]:
        """Every file of a bucket."""
        fs, root = self.storage.filesystem(self.uri(bucket, ""))
        return [path.removeprefix(f"{root}/") for path in fs.find(root)]

    @property
    def section(self) -> dict[str, Any]:
        """`storage:` of a pipeline file."""
        return {"options": {"dfs.replication": "1"}}

    @property
    def storage(self) -> Any:
        """The same for a part alone."""
        from penstock.storage import Storage

        return Storage(options=(("dfs.replication", "1"),))

    def start(self) -> None:
        """Start what does not run, and wait until a file can be written."""
        for server in (_NAME_NODE, _DATA_NODE):
            if server not in self._processes:
                self._processes[server] = self._java(server)
        wait_for(self._answers, "HDFS", 60)

    def stop_name_node(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill it, or let it hang."""
        process = self._processes[_NAME_NODE]
        process.send_signal(how)
        if how is signal.SIGKILL:
            self._processes.pop(_NAME_NODE).wait()

    def resume_name_node(self) -> None:
        """Let one that hangs go on."""
        self._processes[_NAME_NODE].send_signal(signal.SIGCONT)

    def format(self) -> None:
        """Make an empty file system."""
        assert self._java(_NAME_NODE, "-format", "-nonInteractive").wait(60) == 0, self._log.read_text()[-4000:]

    def end(self) -> None:
        """End all of it."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    @property
    def _log(self) -> Path:
        return self._folder / "hdfs.log"

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        beside = [str(jar) for jar in (spark_home() / "jars").glob("*.jar") if jar.name.startswith(_BESIDE)]
        path = os.pathsep.join([str(self._folder), str(jar_folder("hdfs") / "*"), *beside])
        with self._log.open("ab") as log:
            command = [str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, *words]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _answers(self) -> bool:
        from hdfs_native import Client

        assert all(process.poll() is None for process in self._processes.values()), self._log.read_text()[-4000:]
        try:
            client = Client(self.root, {"dfs.replication": "1", "dfs.client.failover.max.attempts": "1"})
            with client.create(f"/.ready-{time.time_ns()}") as file:
                file.write(b"yes")
        except Exception:
            return False
        return True

    def _write_settings(self, ports: list[int]) -> None:
        names = ("dfs.namenode.http-address", "dfs.datanode.address", "dfs.datanode.http.address")
        own = dict(zip((*names, "dfs.datanode.ipc.address"), (f"127.0.0.1:{port}" for port in ports), strict=True))
        hdfs = {
            **own,
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": "1",
        }
        core = {"fs.defaultFS": self.root, "hadoop.tmp.dir": str(self._folder / "data")}
        for name, settings in (("core-site.xml", core), ("hdfs-site.xml", hdfs)):
            body = "".join(
                f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()
            )
            (self._folder / name).write_text(f"<configuration>{body}</configuration>")


@contextmanager
def running_hdfs(folder: Path) -> Iterator[HdfsServer]:
    """One of one's own, ended at the end."""
    server = HdfsServer(folder)
    server.format()
    try:
        server.start()
        yield server
    finally:
        server.end()
