"""An object store as an fsspec file system: listings are not cached, folders are prefixes, writes are atomic.

Exactly-once depends on two conditional writes: `put_new` creates an object only if there is none, `put_over` replaces
one only if it is unchanged. Paths are `bucket/key`. An object is also a file, read by ranges or written in parts.

It calls obstore's plain functions rather than subclassing obstore's `FsspecStore`, since every call needs our errors
and retries, and commits need the conditional writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from penstock.storage.stores import Patience, store_of, translated_errors


class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object as a file: read by ranges, or written in parts and visible once it is closed."""

    def __init__(self, fs: Any, path: str, *given: Any, **named: Any) -> None:
        self._writer: Any = None
        super().__init__(fs, path, *given, **named)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))

    def _initiate_upload(self) -> None:
        self._writer = self.fs.writer(self.path)

    def _upload_chunk(self, final: bool = False) -> bool:
        with self.fs._translated("writing", self.path):
            self._writer.write(self.buffer.getvalue())
            if final:
                self._writer.close()
        return True

    def discard(self) -> None:
        """Abandon the upload: without its last part the object never appears."""
        self._writer = None


_AT_ONCE = 16
_DELETES = 1000


class ChangedError(Exception):
    """An object was replaced since it was read."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it was read; `put_over` compares its `mark`."""

    body: bytes
    mark: str
    at: datetime
    """When it was written, by the store's own clock."""


class ObjectFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The buckets of one kind of store that one set of credentials can access."""

    cachable = False

    def __init__(self, scheme: str, options: dict[str, str], patience: Patience = Patience()) -> None:
        super().__init__(use_listings_cache=False)
        self._scheme = scheme
        self._options = tuple(sorted(options.items()))
        self._patience = patience
        self.protocol = scheme

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._scheme, dict(self._options), self._patience)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFileSystem) and self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self) -> int:
        return hash((self._scheme, self._options))

    def __repr__(self) -> str:
        return f"ObjectFileSystem({self._scheme})"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).partition("://")[2].rstrip("/") if "://" in str(path) else str(path).rstrip("/")

    def read(self, path: str) -> StoredObject | None:
        """An object with its mark; none if it does not exist."""
        store, key = self._at(path)
        try:
            with self._translated("reading", path):
                found = store.get(key)
                body, about = bytes(found.bytes()), found.meta
        except FileNotFoundError:
            return None
        return StoredObject(body, str(about.get("e_tag") or about.get("version") or ""), about["last_modified"])

    def put_new(self, path: str, body: bytes) -> str:
        """Create an object; `FileExistsError` if there is one. Of two concurrent calls one succeeds."""
        from obstore.exceptions import AlreadyExistsError

        store, key = self._at(path)
        try:
            with self._translated("writing", path):
                try:
                    made = store.put(key, body, mode="create", use_multipart=False)
                except AlreadyExistsError as error:
                    raise FileExistsError(path) from error
        except FileExistsError:
            # A put that was retried because its response was lost finds what it wrote itself.
            held = self.read(path)
            if held is not None and held.body == body:
                return held.mark
            raise
        return str(made.get("e_tag") or "")

    def put_over(self, path: str, body: bytes, mark: str) -> str:
        """Replace the object if it still has this mark; else `ChangedError`."""
        from obstore.exceptions import PreconditionError

        store, key = self._at(path)
        try:
            with self._translated("writing", path):
                try:
                    made = store.put(key, body, mode={"e_tag": mark}, use_multipart=False)
                except PreconditionError as error:
                    raise FileExistsError(path) from error
        except (FileExistsError, FileNotFoundError):
            held = self.read(path)
            if held is not None and held.body == body:
                return held.mark
            raise ChangedError(path) from None
        return str(made.get("e_tag") or "")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """What is at a path: an object, or a folder with objects in it."""
        path = self._strip_protocol(path)
        try:
            return self._head(path)
        except FileNotFoundError:
            if self._any_below(path):
                return {"name": path, "size": 0, "type": "directory"}
            raise

    def look_into(self, path: str) -> None:
        """Ask for any object of a bucket, to see whether the bucket can be read."""
        self._any_below(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        """Whether an object is there: one request."""
        try:
            self._head(self._strip_protocol(path))
        except FileNotFoundError:
            return False
        return True

    def modified(self, path: str) -> datetime:
        """When an object was written."""
        at: datetime = self._head(self._strip_protocol(path))["mtime"]
        return at

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is directly below a path."""
        path = self._strip_protocol(path)
        store, key = self._at(path)
        bucket = path.partition("/")[0]
        with self._translated("listing", path):
            found = store.list_with_delimiter(key or None)
            prefixes, objects = list(found["common_prefixes"]), list(found["objects"])
        shown = [{"name": f"{bucket}/{one}".rstrip("/"), "size": 0, "type": "directory"} for one in prefixes]
        shown += [_about(bucket, one) for one in objects if not _is_marker(one, key)]
        if key and not shown and not objects:
            shown = [self._head(path)]
        return shown if detail else [one["name"] for one in shown]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Every object below a path, or the one at it."""
        path = self._strip_protocol(path)
        store, key = self._at(path)
        bucket = path.partition("/")[0]
        with self._translated("listing", path):
            about = [
                _about(bucket, one)
                for some in store.list(key or None)
                for one in some
                if not str(one["path"]).endswith("/")
            ]
        if not about and key:
            try:
                about = [self._head(path)]
            except FileNotFoundError:
                about = []
        found = {one["name"]: one for one in sorted(about, key=lambda one: str(one["name"]))}
        return found if detail else list(found)

    def list_after(self, path: str, name: str) -> Iterator[str]:
        """The objects below a path whose names come after one, in order, listed lazily."""
        path = self._strip_protocol(path)
        store, key = self._at(path)
        bucket = path.partition("/")[0]
        start = f"{key}/{name}" if key else name
        with self._translated("listing", path):
            for some in store.list(key or None, offset=start):
                # Not every server honours the offset; all of them list in order.
                yield from (f"{bucket}/{one['path']}" for one in some if one["path"] > start)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of an object, or some of them."""
        store, key = self._at(path)
        with self._translated("reading", path):
            if start is None and end is None:
                return bytes(store.get(key).bytes())
            size = self._head(self._strip_protocol(path))["size"] if end is None or end < 0 or (start or 0) < 0 else 0
            first = (start or 0) + (size if (start or 0) < 0 else 0)
            last = size if end is None else end + (size if end < 0 else 0)
            return bytes(store.get_range(key, start=first, end=last)) if last > first else b""

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The bytes of one object, or of several in parallel."""
        if isinstance(path, str):
            return self.cat_file(path)

        def one(each: str) -> bytes | Exception:
            try:
                return self.cat_file(each)
            except Exception as error:
                if on_error == "raise":
                    raise
                return error

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(path, pool.map(one, path), strict=True))
        return {name: body for name, body in found.items() if on_error != "omit" or isinstance(body, bytes)}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write an object, whole."""
        if mode == "create":
            self.put_new(path, bytes(value))
            return
        store, key = self._at(path)
        with self._translated("writing", path):
            store.put(key, bytes(value))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy an object within its bucket, by the store itself."""
        store, key = self._at(path1)
        with self._translated("copying", path1):
            store.copy(key, self._at(path2)[1])

    def writer(self, path: str) -> Any:
        """An object to write in parts, visible once it is closed."""
        from obstore import open_writer

        return open_writer(*self._at(path))

    # A missing object is no error: stores do not report it. `rm_file` of fsspec calls this.
    def _rm(self, path: str) -> None:
        self._remove([path])

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove objects, or all below a path."""
        paths = [path] if isinstance(path, str) else list(path)
        if recursive:
            paths = [name for each in paths for name in self.find(each)]
        self._remove(paths)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **kwargs: Any
    ) -> ObjectFile:
        size = None if "w" in mode else int(self.info(path)["size"])
        return ObjectFile(self, path, mode, block_size or 8 << 20, autocommit, cache_type="readahead", size=size)

    def _remove(self, paths: Iterable[str]) -> None:
        by_bucket: dict[str, list[str]] = {}
        for path in map(self._strip_protocol, paths):
            bucket, _, key = path.partition("/")
            by_bucket.setdefault(bucket, []).append(key)
        for bucket, keys in by_bucket.items():
            store = self._at(bucket)[0]
            for start in range(0, len(keys), _DELETES):
                some = keys[start : start + _DELETES]
                with self._translated("removing", f"{bucket}/{some[0]}"):
                    try:
                        store.delete(some if len(some) > 1 else some[0])
                    except FileNotFoundError:
                        continue

    def _head(self, path: str) -> dict[str, Any]:
        store, key = self._at(path)
        if not key:
            raise FileNotFoundError(path)
        with self._translated("looking at", path):
            return _about(path.partition("/")[0], store.head(key))

    def _any_below(self, path: str) -> bool:
        store, key = self._at(path)
        with self._translated("listing", path):
            return any(len(some) > 0 for some in store.list(key or None, chunk_size=1))

    def _at(self, path: str) -> tuple[Any, str]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return store_of(self._scheme, bucket, self._options, self._patience), key

    def _translated(self, doing: str, path: str) -> Any:
        return translated_errors(doing, self.unstrip_protocol(path))


def _about(bucket: str, one: Any) -> dict[str, Any]:
    return {
        "name": f"{bucket}/{one['path']}",
        "size": int(one["size"]),
        "type": "file",
        "mtime": one["last_modified"],
        "ETag": one.get("e_tag"),
    }


def _is_marker(one: Any, key: str) -> bool:
    """Whether an object only marks a folder, as some tools write them."""
    return str(one["path"]).rstrip("/") == key.rstrip("/") and int(one["size"]) == 0
