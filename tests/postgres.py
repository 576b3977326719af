"""A real PostgreSQL server for the tests: started on loopback, killed and started again, gone afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from penstock.devstack.processes import free_ports
from penstock.spark.jars import jar_folder

USER = "penstock"
PASSWORD = "pass/word:1"
_START_SECONDS = 60
_PR_SET_PDEATHSIG = 1


class PostgresServer:
    """One server and its data. `folder` holds the data, unless we are root.

    PostgreSQL refuses to run as root, and the folders of a test are closed to all others: root gives it a folder of
    its own, and the user `postgres` or `nobody`.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", within: Sequence[str] = (), fsync: bool = True) -> None:
        """On another host than this one with the words that a command begins with there."""
        self._fsync = fsync
        self._bin = find_binaries()
        self._host, self._within = host, within
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self.folder = folder / "postgres" if self._user is None else Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.data = self.folder / "data"
        self.port = free_ports(1)[0]
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@{self._host}:{self.port}/{database}"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._make_data()
        settings = {
            "listen_addresses": self._host,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "max_prepared_transactions": 0,
            "log_min_messages": "warning",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._spawn("postgres", "-D", str(self.data), *arguments)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                # The link may be a late one: what takes long here is a fault of the test's own making.
                psycopg.connect(self.url(), connect_timeout=30).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """A clean end: open transactions are rolled back, the data stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """SIGKILL to every process of the server: what was not on disk is lost, unlogged tables are emptied."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self._process.pid)
            # Stopped first, so that it starts no other process between the look and the kill.
            postmaster.suspend()
            family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(30)
        psutil.wait_procs(family, timeout=30)
        self._process = None

    def processes(self) -> list[psutil.Process]:
        """Every process of the server that is there."""
        if self._process is None or self._process.poll() is not None:
            return []
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """End it and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self) -> str:
        """A new database of its own; its name."""
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _make_data(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        made = self._spawn(
            *("initdb", "-D", str(self.data), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"),
            *("-A", "scram-sha-256", f"--pwfile={secret}"),
        )
        if made.wait(_START_SECONDS) != 0:
            raise RuntimeError(f"initdb:\n{self.log[-2000:]}")
        secret.unlink()
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self._bin / program), *arguments]
        if self._within:
            command = [*self._within, "runuser", "-u", str(self._user), "--", *command]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=None if self._within else self._user,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )


@contextlib.contextmanager
def running_server(folder: Path, fsync: bool = True) -> Iterator[PostgresServer]:
    server = PostgresServer(folder, fsync=fsync)
    try:
        server.start()
        yield server
    finally:
        server.close()


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`: the machine's, else those of an embedded server, fetched and unpacked."""
    found = shutil.which("postgres")
    if found is not None and shutil.which("initdb") is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    [packed] = jar_folder("postgres").glob("*.jar")
    return _unpack(packed)


def _unpack(jar: Path) -> Path:
    """Once, where everyone may read it: the server runs as another user than root, whose folders are closed."""
    target = Path(tempfile.gettempdir()) / f"penstock-{jar.stem}"
    if not target.exists():
        with zipfile.ZipFile(jar) as outer, tempfile.TemporaryDirectory() as aside:
            inner = next(name for name in outer.namelist() if name.endswith(".txz"))
            with outer.open(inner) as stream, tarfile.open(fileobj=stream, mode="r:xz") as archive:
                archive.extractall(Path(aside) / "whole", filter="tar")
            with contextlib.suppress(FileExistsError):
                (Path(aside) / "whole").rename(target)
    return target / "bin"


def _unprivileged() -> str:
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _die_with_parent() -> None:
    """A test run that is killed takes its server along."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
