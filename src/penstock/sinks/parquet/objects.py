"""A target in an object store: a batch is made visible by a manifest that only one writer can put.

There is no rename of a folder there. Files are staged outside the target, where no reader looks. The commit is the put
of the batch's manifest, which succeeds only where there is none: it names the files and carries the position. Then the
store copies each staged file to its place in the batch's folder. After a crash in between, the batch is committed by
its manifest, and a listing shows part of it. The next start copies the rest, and so does the next commit of any driver
before its own: only the newest batch can be incomplete. So every reader sees each row once, and those that read the
manifests see only whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.files import TableFolder
from penstock.sinks.files.stage import StagedFile
from penstock.sinks.parquet.columns import BATCH_COLUMN, Columns
from penstock.sinks.parquet.target import MANIFEST, Batch, FolderLayout, FolderTarget, is_numbered, newest_names
from penstock.storage import ChangedError, Storage

_TRIES = 20


class ObjectTarget(FolderTarget):
    """A prefix in a bucket."""

    def __init__(self, sink: str, uri: str, pipeline: str, layout: FolderLayout, storage: Storage) -> None:
        self._uri = uri.rstrip("/")
        self._storage = storage
        super().__init__(pipeline, sink, layout, TableFolder(uri, storage), staging_of(self._uri))

    def agree(self, merge: Callable[[Columns | None], Columns]) -> Columns:
        """Add columns to those of the target, by compare-and-swap."""
        filesystem, root = self._filesystem()
        path = f"{root}/{self._layout.columns_file}"
        for _ in range(_TRIES):
            held = filesystem.read(path)
            before = Columns.from_footer(held.body) if held is not None else None
            agreed = merge(before)
            try:
                if held is None:
                    filesystem.put_new(path, agreed.to_footer())
                elif agreed != before:
                    filesystem.put_over(path, agreed.to_footer(), held.mark)
            except (FileExistsError, ChangedError):
                continue
            return agreed
        raise TerminalError("SINK_FAILED", f"sink {self._sink}: the columns were changed {_TRIES} times in a row")

    def files(self) -> tuple[TableFolder, list[str]]:
        """The bucket, and every committed file; one that is not copied yet is read where it is staged."""
        filesystem, root = self._filesystem()
        listed = [path for path in filesystem.find(root) if fnmatch(path, self._layout.files)]
        found = {path for path in listed if path.startswith(f"{root}/{BATCH_COLUMN}=")}
        newest = self._newest()
        if newest is not None:
            staged = f"{staging_of(root)}/{self._staged_label(newest.position.last)}"
            found |= {f"{staged}/{p}" for p in newest.files if f"{root}/{newest.name}/{p}" not in found}
        bucket, _, _ = root.partition("/")
        scheme = self._uri.partition("://")[0]
        return TableFolder(f"{scheme}://{bucket}", self._storage), sorted(p.partition("/")[2] for p in found)

    def clear(self, token: BatchToken) -> None:
        """Remove what is staged for a batch that is shown whole."""
        filesystem, root = self._filesystem()
        filesystem.rm(f"{staging_of(root)}/{self._staged_label(token)}", recursive=True)

    def _newest_names(self) -> list[str]:
        # A store lists in the order of names: only what follows a known number is asked for.
        memory = self._memory
        if memory.names is None or not any(is_numbered(name, self._begins) for name in memory.names):
            memory.names = newest_names(self._folder.names(), self._begins)
            return memory.names
        filesystem, root = self._filesystem()
        # After all objects of the known batch: "0" follows "/".
        for key in filesystem.list_after(root, f"{memory.names[0]}0"):
            name = key.removeprefix(f"{root}/").partition("/")[0]
            if not is_numbered(name, self._begins):
                break
            memory.names = [name]
        return memory.names

    def _bodies(self, names: Sequence[str]) -> Mapping[str, bytes | None]:
        if len(names) == 1:
            return super()._bodies(names)
        filesystem, root = self._filesystem()
        paths = {name: f"{root}/{name}/{MANIFEST}" for name in names}
        found = filesystem.cat(list(paths.values()), on_error="return")
        for body in found.values():
            if isinstance(body, Exception) and not isinstance(body, FileNotFoundError):
                raise body
        return {name: found[path] if isinstance(found[path], bytes) else None for name, path in paths.items()}

    def _publish(self, name: str, token: BatchToken, files: Sequence[StagedFile], manifest: bytes) -> None:
        filesystem, root = self._filesystem()
        filesystem.put_new(f"{root}/{name}/{MANIFEST}", manifest)
        self._memory.names = [name]

    def _finish(self, batch: Batch) -> None:
        """Copy the files that are missing to where a listing shows them; then remove what is staged."""
        filesystem, root = self._filesystem()
        folder = f"{root}/{batch.name}"
        staged = f"{staging_of(root)}/{self._staged_label(batch.position.last)}"
        there = set(filesystem.find(folder))
        for path in batch.files:
            if f"{folder}/{path}" in there:
                continue
            try:
                filesystem.cp_file(f"{staged}/{path}", f"{folder}/{path}")
            except FileNotFoundError as error:
                # Another driver may have copied and cleared it meanwhile.
                if not filesystem.isfile(f"{folder}/{path}"):
                    raise self._unreadable(f"{folder}/{path}", error) from error
        self.clear(batch.position.last)

    def _write(self, path: str, body: bytes) -> None:
        filesystem, root = self._filesystem()
        filesystem.pipe_file(f"{root}/{path}", body)

    def _filesystem(self) -> tuple[Any, str]:
        return self._storage.filesystem(self._uri)


def staging_of(place: str) -> str:
    """Where files are staged: in the same bucket, next to the target; of a whole bucket, in it."""
    parent, slash, name = place.rpartition("/")
    in_bucket = bool(slash) and bool(parent) and not parent.endswith("/")
    return f"{parent}/.{name}.penstock/staged" if in_bucket else f"{place}/_penstock/staged"
