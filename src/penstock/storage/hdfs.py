"""HDFS behind the interface of an object store: atomic writes, and the conditional writes of exactly-once.

A file is written under a temporary name and renamed. `put_new` is a rename that the name node refuses if the file
exists. HDFS has no equivalent of `put_over`: a file replaced that way becomes a series of numbered versions in a folder
next to it, and whoever creates the next number has replaced it; then it is copied to its own name for other readers,
unless it is hidden. The newest version is never removed, so no number is used twice.

There is one client per name service, kept in the process. Every call has a timeout, in case the name node hangs.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from penstock.errors import MissingError, PenstockError
from penstock.storage.objects import ChangedError, ObjectFileSystem, StoredObject
from penstock.storage.stores import Options, Patience, first_line, is_hadoop_option

Result = TypeVar("Result")

# Tries between which the client pauses, half a second at first and twice as long each time.
_ATTEMPTS = "dfs.client.failover.max.attempts"
_FEW_SECONDS = 10.0


class HdfsClient:
    """hdfs-native's client with timeouts, which it lacks. Paths are absolute."""

    def __init__(self, client: Any, seconds: float) -> None:
        self._client, self._seconds = client, seconds

    def call(self, work: Callable[..., Result], *given: Any) -> Result:
        """The result of some work; `TimeoutError` if it takes too long, and it is then left running."""
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
        """The status of a file or folder; `FileNotFoundError` if there is none."""
        return self.call(self._client.get_file_info, path)

    def listed(self, path: str, recursive: bool = False) -> list[Any]:
        """What is in a folder, or all below it."""
        return self.call(lambda: list(self._client.list_status(path, recursive)))

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file from one offset to another; negative ones count from the end."""

        def read() -> bytes:
            file = self._client.read(path)
            size = len(file)
            first = 0 if start is None else max(0, start + size if start < 0 else start)
            last = size if end is None else min(size, end + size if end < 0 else end)
            return bytes(file.read_range(first, last - first)) if last > first else b""

        return self.call(read)

    def create(self, path: str) -> Any:
        """A new file, to be written by `call`; its folders are created."""
        return self.call(self._client.create, path)

    def rename(self, path: str, target: str, overwrite: bool) -> None:
        """Rename a file atomically; `FileExistsError` if the target exists and must not be overwritten."""
        self.call(self._client.rename, path, target, overwrite)

    def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a folder with all in it. One that is not there is no error."""
        self.call(self._client.delete, path, recursive)


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
    settings = {name: value for name, value in options if is_hadoop_option(name)}
    tries = {_ATTEMPTS: "2" if patience.in_all < _FEW_SECONDS else "5"}
    try:
        return HdfsClient(Client(f"hdfs://{authority}", {**tries, **settings}), patience.request)
    except Exception as error:
        raise MissingError(
            "HDFS_NOT_NAMED",
            f"opening hdfs://{authority}: neither a name node nor a configured name service",
            context={"cause": first_line(error)},
            hint="write hdfs://HOST:PORT/path; a name service is configured in storage.options, or in the folder that "
            "HADOOP_CONF_DIR names",
        ) from None


_STAGED = ".penstock-staged-"
_CHUNK = 4 << 20


class HdfsFileSystem(ObjectFileSystem):
    """The files of one name node, or of one name service. Paths are `namenode:port/path`."""

    def read(self, path: str) -> StoredObject | None:
        """A file with its mark; none if it does not exist."""
        while True:
            name, number = self._newest(path)
            client, at = self._at(name)
            try:
                with self._translated("reading", path):
                    about = client.info(at)
                    return StoredObject(client.read(at), str(number), _time(about))
            except FileNotFoundError:
                # A version was replaced meanwhile and removed; number 0 means that there was no file.
                if number == 0:
                    return None

    def put_new(self, path: str, body: bytes) -> str:
        """Create a file; `FileExistsError` if there is one. Of two concurrent calls one succeeds."""
        try:
            self._put(path, body, overwrite=False)
        except (FileExistsError, FileNotFoundError):
            # A rename that was retried because its response was lost finds what it did itself.
            held = self.read(path)
            if held is not None and held.body == body:
                return held.mark
            raise FileExistsError(path) from None
        return "0"

    def put_over(self, path: str, body: bytes, mark: str) -> str:
        """Replace the file if it still has this mark; else `ChangedError`."""
        held = self.read(path)
        number = int(mark) + 1
        if held is not None and held.mark == mark:
            with suppress(FileExistsError, FileNotFoundError):
                self._put(self._version(path, number), body, overwrite=False)
            held = self.read(path)
        if held is None or held.body != body:
            raise ChangedError(path)
        self._show(path, held)
        self._remove_before(path, number - 1)
        return held.mark

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """What is at a path: a file or a folder."""
        path = self._strip_protocol(path)
        client, at = self._at(path)
        with self._translated("looking at", path):
            found = client.info(at)
        return {"name": path, "size": 0, "type": "directory"} if found.isdir else self._about(path, found)

    def look_into(self, path: str) -> None:
        """Ask for the root folder."""
        client, _ = self._at(path)
        with self._translated("looking at", path):
            client.info("/")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is directly below a path."""
        path = self._strip_protocol(path)
        shown = [
            {"name": self._named(path, one), "size": 0, "type": "directory"}
            if one.isdir
            else self._about(self._named(path, one), one)
            for one in self._listed(path)
        ]
        return shown if detail else [one["name"] for one in shown]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Every file below a path, or the one at it."""
        path = self._strip_protocol(path)
        try:
            listed = self._listed(path, recursive=True)
        except FileNotFoundError:
            listed = []
        about = [self._about(self._named(path, one), one) for one in listed if not one.isdir]
        found = {one["name"]: one for one in sorted(about, key=lambda one: str(one["name"]))}
        return found if detail else list(found)

    def list_after(self, path: str, name: str) -> Iterator[str]:
        """The files below a path whose names come after one, in order."""
        path = self._strip_protocol(path)
        start = f"{path}/{name}"
        try:
            listed = self._listed(path)
        except FileNotFoundError:
            return
        # A folder sorts like its files, whose names continue with a slash.
        for one in sorted(listed, key=lambda one: f"{one.path}/" if one.isdir else one.path):
            at = self._named(path, one)
            if not one.isdir and at > start:
                yield at
            elif one.isdir and f"{at}0" > start:  # the character after the slash
                yield from (file for file in self.find(at) if file > start)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or some of them."""
        client, at = self._at(path)
        with self._translated("reading", path):
            return client.read(at, start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file, whole."""
        if mode == "create":
            self.put_new(path, bytes(value))
        else:
            self._put(path, bytes(value), overwrite=True)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file through this machine, as HDFS has no copy operation."""
        writer = self.writer(path2)
        for start in range(0, self._head(path1)["size"], _CHUNK):
            writer.write(self.cat_file(path1, start, start + _CHUNK))
        writer.close()

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, or all below a path."""
        if not recursive:
            super().rm(path)
            return
        for each in [path] if isinstance(path, str) else path:
            self._delete(each, recursive=True)

    def writer(self, path: str) -> HdfsWriter:
        """A file to write in parts, visible once it is closed."""
        return HdfsWriter(self, path, overwrite=True)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._delete(path)

    def _delete(self, path: str, recursive: bool = False) -> None:
        client, at = self._at(path)
        with self._translated("removing", path), suppress(FileNotFoundError):
            client.delete(at, recursive)

    def _head(self, path: str) -> dict[str, Any]:
        found = self.info(path)
        if found["type"] == "directory":
            raise FileNotFoundError(path)
        return found

    def _any_below(self, path: str) -> bool:
        return bool(self.find(path))

    def _put(self, path: str, body: bytes, overwrite: bool) -> None:
        writer = HdfsWriter(self, path, overwrite)
        writer.write(body)
        writer.close()

    def _newest(self, path: str) -> tuple[str, int]:
        """The current version and its number: 0 is the one that `put_new` made."""
        try:
            numbers = [_number(one) for one in self._listed(_versions(path))]
        except FileNotFoundError:
            numbers = []
        return (self._version(path, max(numbers)), max(numbers)) if numbers else (path, 0)

    def _show(self, path: str, newest: StoredObject) -> None:
        """Copy the current version to the plain name, for readers who do not know about versions."""
        while not path.rpartition("/")[2].startswith("."):
            self._put(path, newest.body, overwrite=True)
            last, newest = newest, self.read(path) or newest
            if newest.mark == last.mark:
                return

    def _version(self, path: str, number: int) -> str:
        return f"{_versions(self._strip_protocol(path))}/{number:020d}"

    def _remove_before(self, path: str, number: int) -> None:
        with suppress(PenstockError, OSError):
            for one in self._listed(_versions(path)):
                if _number(one) < number:
                    self._delete(self._named(path, one))

    def _listed(self, path: str, recursive: bool = False) -> list[Any]:
        client, at = self._at(path)
        with self._translated("listing", path):
            return [one for one in client.listed(at, recursive) if _STAGED not in one.path]

    def _named(self, path: str, one: Any) -> str:
        return f"{self._strip_protocol(path).partition('/')[0]}{one.path}"

    def _about(self, path: str, one: Any) -> dict[str, Any]:
        return {"name": path, "size": int(one.length), "type": "file", "mtime": _time(one), "ETag": None}

    def _at(self, path: str) -> tuple[HdfsClient, str]:
        authority, _, key = self._strip_protocol(path).partition("/")
        return client_of(authority, self._options, self._patience), f"/{key}"


class HdfsWriter:
    """A file under a temporary name, renamed when it is closed."""

    def __init__(self, filesystem: HdfsFileSystem, path: str, overwrite: bool) -> None:
        self._path, self._overwrite = path, overwrite
        self._translated: Callable[[str, str], Any] = filesystem._translated
        self._client, self._target = filesystem._at(path)
        self._staged = f"{self._target.rpartition('/')[0]}/{_STAGED}{secrets.token_hex(8)}"
        with self._translated("writing", path):
            self._file = self._client.create(self._staged)

    def write(self, body: bytes) -> None:
        """More of it."""
        with self._translated("writing", self._path):
            self._client.call(self._file.write, body)

    def close(self) -> None:
        """Make it visible."""
        with self._translated("writing", self._path):
            self._client.call(self._file.close)
            try:
                self._client.rename(self._staged, self._target, self._overwrite)
            except FileExistsError:
                self._client.delete(self._staged)
                raise


def _versions(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name.lstrip('.')}.versions"


def _number(one: Any) -> int:
    return int(one.path.rpartition("/")[2])


def _time(one: Any) -> datetime:
    return datetime.fromtimestamp(one.modification_time / 1000, UTC)
