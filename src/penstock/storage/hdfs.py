"""HDFS with the face of an object store: a file appears whole or not at all, and what exactly-once stands on is there.

A file is written under another name and renamed. `put_new` is a rename that the name node refuses where a file is. For
`put_over` HDFS has no word: what is replaced so becomes a row of numbered files in a folder beside it, and who makes
the next number has replaced it; then it is copied to its own name, for other readers, unless that is hidden. The newest
is never removed, so a number that was used is not used again.

There is one client a name service, kept in the process. Every call ends, also where the name node hangs.
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


_STAGED = ".penstock-staged-"
_CHUNK = 4 << 20


class HdfsFileSystem(ObjectFileSystem):
    """The files of one name node, or of one name service. Paths are `namenode:port/path`."""

    def read(self, path: str) -> StoredObject | None:
        """A file with what tells it from later ones; none where it is not there."""
        while True:
            name, number = self._newest(path)
            client, at = self._at(name)
            try:
                with self._telling("reading", path):
                    about = client.info(at)
                    return StoredObject(client.read(at), str(number), _time(about))
            except FileNotFoundError:
                # Replaced meanwhile, and removed, unless nothing ever was.
                if number == 0:
                    return None

    def put_new(self, path: str, body: bytes) -> str:
        """Make a file where none is; `FileExistsError` where one is. Of two who do this at once one succeeds."""
        try:
            self._put(path, body, overwrite=False)
        except (FileExistsError, FileNotFoundError):
            # A rename that was sent again because its answer was lost finds what it did itself.
            held = self.read(path)
            if held is not None and held.body == body:
                return held.mark
            raise FileExistsError(path) from None
        return "0"

    def put_over(self, path: str, body: bytes, mark: str) -> str:
        """Replace a file that is still the one with this mark; `ChangedError` where it is not."""
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
        with self._telling("looking at", path):
            found = client.info(at)
        return {"name": path, "size": 0, "type": "directory"} if found.isdir else self._about(path, found)

    def look_into(self, path: str) -> None:
        """Ask for the root folder."""
        client, _ = self._at(path)
        with self._telling("looking at", path):
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
        # A folder sorts as its files do, which have a slash behind its name.
        for one in sorted(listed, key=lambda one: f"{one.path}/" if one.isdir else one.path):
            at = self._named(path, one)
            if not one.isdir and at > start:
                yield at
            elif one.isdir and f"{at}0" > start:  # the character behind the slash
                yield from (file for file in self.find(at) if file > start)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or some of them."""
        client, at = self._at(path)
        with self._telling("reading", path):
            return client.read(at, start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file, whole."""
        if mode == "create":
            self.put_new(path, bytes(value))
        else:
            self._put(path, bytes(value), overwrite=True)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file: by this machine, as HDFS has no copy of its own."""
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
        """A file to write in parts, there when it is closed."""
        return HdfsWriter(self, path, overwrite=True)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._delete(path)

    def _delete(self, path: str, recursive: bool = False) -> None:
        client, at = self._at(path)
        with self._telling("removing", path), suppress(FileNotFoundError):
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
        """The file that counts, and its number: 0 is the one that `put_new` made."""
        try:
            numbers = [_number(one) for one in self._listed(_versions(path))]
        except FileNotFoundError:
            numbers = []
        return (self._version(path, max(numbers)), max(numbers)) if numbers else (path, 0)

    def _show(self, path: str, newest: StoredObject) -> None:
        """Copy the file that counts to the name itself, for readers who know nothing of numbers."""
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
        with self._telling("listing", path):
            return [one for one in client.listed(at, recursive) if _STAGED not in one.path]

    def _named(self, path: str, one: Any) -> str:
        return f"{self._strip_protocol(path).partition('/')[0]}{one.path}"

    def _about(self, path: str, one: Any) -> dict[str, Any]:
        return {"name": path, "size": int(one.length), "type": "file", "mtime": _time(one), "ETag": None}

    def _at(self, path: str) -> tuple[HdfsClient, str]:
        authority, _, key = self._strip_protocol(path).partition("/")
        return client_of(authority, self._options, self._patience), f"/{key}"


class HdfsWriter:
    """A file under another name, that gets its own when it is closed."""

    def __init__(self, filesystem: HdfsFileSystem, path: str, overwrite: bool) -> None:
        self._path, self._overwrite = path, overwrite
        self._telling: Callable[[str, str], Any] = filesystem._telling
        self._client, self._target = filesystem._at(path)
        self._staged = f"{self._target.rpartition('/')[0]}/{_STAGED}{secrets.token_hex(8)}"
        with self._telling("writing", path):
            self._file = self._client.create(self._staged)

    def write(self, body: bytes) -> None:
        """More of it."""
        with self._telling("writing", self._path):
            self._client.done(self._file.write, body)

    def close(self) -> None:
        """Let it appear."""
        with self._telling("writing", self._path):
            self._client.done(self._file.close)
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
