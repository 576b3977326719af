"""The client of HDFS, one a name service and kept in the process; every call ends, also where the name node hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, TypeVar

from penstock.errors import MissingError
from penstock.storage.client_settings import is_hadoop_option
from penstock.storage.stores import Options, Patience, first_line

Result = TypeVar("Result")

# Tries between which the client pauses, half a second at first and twice as long each time.
_ATTEMPTS = "dfs.client.failover.max.attempts"
_FEW_SECONDS = 10.0


class HdfsClient:
    """hdfs-native's, which waits for ever, for callers who do not. Paths are absolute."""

    def __init__(self, client: Any, seconds: float) -> None:
        self._client, self._seconds = client, seconds

    def done(self, work: Callable[..., Result], *given: Any) -> Result:
        """What some work gives; `TimeoutError` where that takes too long, and nobody waits for its end."""
        outcome: Future[Result] = Future()

        def run() -> None:
            try:
                outcome.set_result(work(*given))
            except BaseException as error:
                outcome.set_exception(error)

        threading.Thread(target=run, name="penstock-hdfs", daemon=True).start()
        try:
            return outcome.result(self._seconds)
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._seconds:g} s") from None

    def info(self, path: str) -> Any:
        """What is known of a file or folder; `FileNotFoundError` where there is none."""
        return self.done(self._client.get_file_info, path)

    def listed(self, path: str, recursive: bool = False) -> list[Any]:
        """What is in a folder, or all below it."""
        return self.done(lambda: list(self._client.list_status(path, recursive)))

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file from one place to another, both from the end where they are negative."""

        def read() -> bytes:
            file = self._client.read(path)
            size = len(file)
            first = 0 if start is None else max(0, start + size if start < 0 else start)
            last = size if end is None else min(size, end + size if end < 0 else end)
            return bytes(file.read_range(first, last - first)) if last > first else b""

        return self.done(read)

    def create(self, path: str) -> Any:
        """A new file, to be written by `done`; its folders are made."""
        return self.done(self._client.create, path)

    def rename(self, path: str, target: str, overwrite: bool) -> None:
        """Give a file another name, in one step; `FileExistsError` where that is taken and may not be."""
        self.done(self._client.rename, path, target, overwrite)

    def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a folder with all in it. One that is not there is no error."""
        self.done(self._client.delete, path, recursive)


def client_of(authority: str, options: Options, patience: Patience) -> HdfsClient:
    """The client of one name node, or name service. A process that was forked makes its own."""
    return _client(authority, options, patience, os.getpid())


@lru_cache(maxsize=64)
def _client(authority: str, options: Options, patience: Patience, process: int) -> HdfsClient:
    try:
        from hdfs_native import Client
    except ImportError:
        raise MissingError(
            "HDFS_CLIENT_MISSING",
            f"opening hdfs://{authority}: the package hdfs-native is not installed",
            hint="pip install 'penstock[hdfs]'",
        ) from None
    told = {name: value for name, value in options if is_hadoop_option(name)}
    tries = {_ATTEMPTS: "2" if patience.in_all < _FEW_SECONDS else "5"}
    try:
        return HdfsClient(Client(f"hdfs://{authority}", {**tries, **told}), patience.request)
    except Exception as error:
        raise MissingError(
            "HDFS_NOT_NAMED",
            f"opening hdfs://{authority}: that is no name node, nor a name service that is known here",
            context={"cause": first_line(error)},
            hint="write hdfs://HOST:PORT/path; what a name service is made of stands in storage.options, or in the "
            "folder that HADOOP_CONF_DIR names",
        ) from None
