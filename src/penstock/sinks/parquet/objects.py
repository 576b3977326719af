"""The batches of a target in an object store: made visible by a manifest that only one writer can put.

There is no rename of a folder there. Files are staged beside the target, where no reader comes by. The commit is the
put of the batch's manifest, which succeeds only where none is: it names the files and carries the token.
Then the store copies each staged file to its place in the batch's folder. A crash in between leaves a batch that its
manifest calls committed and a listing shows in part; the next start, or another writer of the same batch, copies the
rest. So each row is there once for everybody, and whole batches at a time for those who read the manifests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.errors import MissingError, TerminalError
from penstock.model import BatchToken
from penstock.sinks.files import TableFolder
from penstock.sinks.parquet.batches import MANIFEST, Batches, CommittedBatch, manifest_of
from penstock.sinks.parquet.columns import BATCH_COLUMN, COMMON_METADATA, Columns
from penstock.sinks.parquet.stage import StagedFile
from penstock.storage import ChangedError, Storage

_TRIES = 20


class ObjectPlace:
    """A target in an object store."""

    def __init__(self, sink: str, uri: str, pipeline: str, storage: Storage) -> None:
        self._sink = sink
        self._uri = uri.rstrip("/")
        self._storage = storage
        self.batches = ObjectBatches(self._uri, pipeline, sink, storage)

    def columns(self) -> Columns | None:
        """The columns of the target, or none where it is no target of ours."""
        held = self._at(COMMON_METADATA)[0].read(self._at(COMMON_METADATA)[1])
        return Columns.from_footer(held.body) if held is not None else None

    def refuse_others(self) -> None:
        """Refuse a place of somebody else's objects, whose readers would see both."""
        if self.columns() is not None:
            return
        found = TableFolder(self._uri, self._storage).any_file()
        if found is not None:
            raise MissingError(
                "SINK_PATH_NOT_A_TABLE",
                f"sink {self._sink}: the place holds objects that no Parquet sink wrote",
                context={"path": self._uri, "found": found},
                hint="give the sink an empty prefix",
            )

    def agree(self, merge: Callable[[Columns | None], Columns]) -> Columns:
        """Add columns to those of the target, as nobody else has changed them meanwhile."""
        filesystem, path = self._at(COMMON_METADATA)
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
        raise TerminalError("SINK_FAILED", f"sink {self._sink}: others changed the columns {_TRIES} times in a row")

    def staging(self, token: BatchToken) -> TableFolder:
        """Where the batch's files are staged."""
        return TableFolder(f"{staged_beside(self._uri)}/{self.batches.label(token)}", self._storage)

    def land(self, token: BatchToken, files: Sequence[StagedFile], columns: Columns) -> None:
        """Commit a batch. `FileExistsError` where another writer did."""
        self.batches.put_manifest(token, files, columns)
        self.batches.complete(token)

    def settle(self) -> None:
        """At a start: show whole what a crash left half shown."""
        self.batches.complete_newest()

    def _at(self, name: str) -> tuple[Any, str]:
        filesystem, root = self._storage.filesystem(self._uri)
        return filesystem, f"{root}/{name}"


class ObjectBatches(Batches):
    """The batches of one pipeline's sink in an object store."""

    def __init__(self, uri: str, pipeline: str, sink: str, storage: Storage) -> None:
        super().__init__(None, pipeline, sink)
        self._uri = uri
        self._storage = storage

    def find(self, token: BatchToken) -> CommittedBatch | None:
        """The batch of this query and id, if it is there."""
        name = self._name(token)
        return self._manifest(name) if name in self._read or self._body(name) is not None else None

    def put_manifest(self, token: BatchToken, files: Sequence[StagedFile], columns: Columns) -> None:
        """Put the manifest: from then on the batch is committed."""
        filesystem, root = self._filesystem()
        newest = self.newest()
        body = manifest_of(token, files, columns, newest.number + 1 if newest else 1)
        name = self._name(token)
        filesystem.put_new(f"{root}/{name}/{MANIFEST}", body)
        self._note(name, self._listed)

    def complete(self, token: BatchToken) -> None:
        """Copy the files of a committed batch to where a listing shows them, as far as they are not there."""
        self._complete(self.label(token))

    def complete_newest(self) -> None:
        """The same for the newest batch of each query, by a new look at the whole target."""
        self._listed = {}
        for name in self._newest_by_query().values():
            self._complete(name.removeprefix(f"{BATCH_COLUMN}="))

    def clear(self, token: BatchToken) -> None:
        """Remove what is staged for a batch that is complete."""
        filesystem, root = self._filesystem()
        filesystem.rm(f"{staged_beside(root)}/{self.label(token)}", recursive=True)

    def _complete(self, label: str) -> None:
        filesystem, root = self._filesystem()
        folder, staged = f"{root}/{BATCH_COLUMN}={label}", f"{staged_beside(root)}/{label}"
        body = self._body(f"{BATCH_COLUMN}={label}")
        there = set(filesystem.find(folder))
        for file in body["files"] if body is not None else ():
            path = file["path"]
            if f"{folder}/{path}" in there:
                continue
            try:
                filesystem.cp_file(f"{staged}/{path}", f"{folder}/{path}")
            except FileNotFoundError as error:
                # Another writer of the batch may have copied and cleared it meanwhile.
                if not filesystem.isfile(f"{folder}/{path}"):
                    raise self._unreadable(f"{folder}/{path}", error) from error

    def _newest_by_query(self) -> dict[str, str]:
        """As for a folder. A store lists in the order of names: what is behind a known one is asked for alone."""
        if not self._listed:
            return super()._newest_by_query()
        filesystem, root = self._filesystem()
        newest, seen = dict(self._listed), self._own
        while seen:
            # Behind all objects of a batch: "0" follows "/".
            keys = filesystem.behind(root, f"{seen}0")
            seen = self._walk((key.removeprefix(f"{root}/").partition("/")[0] for key in keys), newest)
        self._listed = newest
        return newest

    def _walk(self, names: Iterator[str], newest: dict[str, str]) -> str:
        """Note the names up to one of a query that is known further: from there the listing goes on."""
        for name in names:
            if not name.startswith(self._own):
                break
            known = self._note(name, newest)
            if name < known:
                return known
        return ""

    def _state(self) -> None:
        return None

    def _names(self) -> list[str]:
        filesystem, root = self._filesystem()
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in filesystem.ls(root, detail=False)]
        except FileNotFoundError:
            return []

    def _body(self, name: str) -> dict[str, Any] | None:
        filesystem, root = self._filesystem()
        try:
            body: dict[str, Any] = json.loads(filesystem.cat_file(f"{root}/{name}/{MANIFEST}"))
        except FileNotFoundError:
            return None
        return body

    def _filesystem(self) -> tuple[Any, str]:
        return self._storage.filesystem(self._uri)


def staged_beside(place: str) -> str:
    """Where files are staged: in the same bucket, beside the target; of a whole bucket, in it."""
    parent, slash, name = place.rpartition("/")
    beside = bool(slash) and bool(parent) and not parent.endswith("/")
    return f"{parent}/.{name}.penstock/staged" if beside else f"{place}/_penstock/staged"
