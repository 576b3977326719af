"""Spark's checkpoint, read and written as files: query id, offset log, commit log, and Penstock's own notes. No JVM.

`offsets/N` is written before batch N runs, `commits/N` after it. `offsets/N` without `commits/N` means that Spark will
run N again with exactly those offsets. Files are written only while no run holds the checkpoint, and exactly as Spark
writes them: each is there whole or not at all. Spark's local file system keeps a checksum next to each file (`.N.crc`)
and refuses a file that does not match it; a file without one is accepted. So the old checksum goes first, then the file
comes in one rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from penstock.checkpoint.atomic import put_whole_at
from penstock.checkpoint.logs import (
    AGAIN_NOTE,
    NO_OFFSETS,
    RESTORING,
    STATE_NOTE,
    TOPICS_NOTE,
    LogFile,
    Offsets,
    checksum_name,
    to_spark_json,
)
from penstock.errors import TerminalError
from penstock.model import BatchToken, OffsetRange, TopicPartition
from penstock.storage import Storage

_START_NOTE = ".penstock.start"
_MAINTAINED_NOTE = ".penstock.maintained"
_SINKS_NOTE = ".penstock.sinks"
PROGRESS_NOTES = frozenset({_START_NOTE, STATE_NOTE, TOPICS_NOTE, AGAIN_NOTE})
"""Penstock's own files that belong to the progress; the others are locks, or describe a run."""


class NotedSink(NamedTuple):
    """A sink that runs with a checkpoint write to."""

    target: str
    first_batch: int
    """The first batch that it gets: once that is committed, the target holds something of it."""


@dataclass(frozen=True)
class SparkCheckpoint:
    """The checkpoint folder of one Structured Streaming query over Kafka sources, which share no topic."""

    path: str
    storage: Storage = field(default_factory=Storage)

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        filesystem, root = self.storage.filesystem(self.path)
        return filesystem, root.rstrip("/")

    def query_id(self) -> str | None:
        """The id that Spark gave the query at its first start; `None` where there is no metadata file."""
        file = self._file("metadata")
        return file.query_id if file is not None else None

    def last_begun(self) -> int | None:
        """The newest batch whose offsets are written."""
        return max(self._batches("offsets"), default=None)

    def last_committed(self) -> int | None:
        """The newest batch that is committed."""
        return max(self._batches("commits"), default=None)

    def ends(self, batch_id: int) -> Offsets:
        """Where a batch ends, for each partition."""
        return self._required(f"offsets/{batch_id}").ends or {}

    def watermark(self, batch_id: int) -> int:
        """The watermark that a batch runs with, in milliseconds; 0 where there is none."""
        file = self._like(f"offsets/{batch_id}")
        if file.head is None:
            raise self._broken(file.name, "it is cut short")
        return int(file.head.get("batchWatermarkMs", 0))

    def late_by(self, batch_id: int) -> int:
        """The watermark by which rows of a batch are late: that of the batch before."""
        return self.watermark(batch_id - 1) if batch_id > 0 else 0

    def initial(self) -> Offsets | None:
        """Where the first batch began; `None` before the first run."""
        found: Offsets | None = None
        for name in sorted(f"sources/{source}/0" for source in self._batches("sources")):
            if (file := self._file(name)) is not None:
                found = (found or {}) | (file.initial or {})
        return found

    def starts(self, batch_id: int) -> Offsets:
        """Where a batch begins, for each partition that was known before it."""
        if batch_id > 0:
            return self.ends(batch_id - 1)
        initial = self.initial()
        if initial is None:
            raise self._broken("sources/0/0", "it is missing")
        return initial

    def start_used(self) -> str | None:
        """The file's `start` at the first run, as Penstock noted it next to Spark's files."""
        return self.text(_START_NOTE)

    def note_start(self, start: str) -> None:
        """Note the `start` of a first run."""
        self.put(_START_NOTE, start)

    def state_noted(self) -> str | None:
        """What the state of this checkpoint depends on, as Penstock noted it at the first run."""
        return self.text(STATE_NOTE)

    def note_state(self, identity: str) -> None:
        """Note what the state depends on."""
        self.put(STATE_NOTE, identity)

    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that the offsets are of, as far as they were noted."""
        file = self._file(TOPICS_NOTE)
        return file.ids if file is not None else {}

    def note_topic_ids(self, ids: dict[str, str]) -> None:
        """Note the ids of the topics."""
        self.put(TOPICS_NOTE, json.dumps(ids, sort_keys=True))

    def sinks_noted(self) -> dict[str, NotedSink]:
        """The sinks of the last run with this checkpoint: a hint, never a proof."""
        text = self.text(_SINKS_NOTE)
        try:
            found = json.loads(text) if text is not None else {}
            return {str(name): NotedSink(str(at), int(first)) for name, (at, first) in found.items()}
        except (ValueError, AttributeError, TypeError):
            return {}

    def note_sinks(self, targets: Mapping[str, str], held: Collection[str] = ()) -> None:
        """At the start of a run: note its sinks with their targets; `held` are those whose targets are not empty."""
        before, done = self.sinks_noted(), self.last_committed()
        next_batch = done + 1 if done is not None else 0
        noted = {}
        for name, target in targets.items():
            first = 0 if name in held else next_batch
            known = before.get(name)
            noted[name] = (target, min(first, known.first_batch) if known and known.target == target else first)
        self.put(_SINKS_NOTE, json.dumps(noted, sort_keys=True))

    def maintained_at(self) -> float | None:
        """When the tables were last maintained, in seconds since 1970."""
        try:
            return float(self.text(_MAINTAINED_NOTE) or "")
        except ValueError:
            return None

    def note_maintained(self, moment: float) -> None:
        """Note that the tables were maintained: short runs share one schedule."""
        self.put(_MAINTAINED_NOTE, str(moment))

    def again(self) -> list[BatchToken]:
        """The batches that a restore left to be run again, oldest first."""
        file = self._file(AGAIN_NOTE)
        return list(file.tokens) if file is not None else []

    def note_again(self, tokens: Sequence[BatchToken]) -> None:
        """Note the batches to be run again; with none the note is removed."""
        if tokens:
            self.put(AGAIN_NOTE, "\n".join(token.to_json() for token in tokens))
        else:
            self.remove(AGAIN_NOTE)

    @contextmanager
    def restoring(self, what: str) -> Iterator[None]:
        """Note that the checkpoint is being rewritten; the note stays if that does not finish."""
        self.put(RESTORING, what)
        yield
        self.remove(RESTORING)

    def put_offsets(self, batch_id: int, ends: Offsets, like: int | None = None) -> None:
        """Write `offsets/N` with the settings and the order of sources of the batch `like`, and the watermark that
        `like` left when it was committed.

        Without such a batch there must be a single source, and Spark uses the settings of the session.
        """
        if like is None:
            head, known = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}', [""]
        else:
            head, *known = self._like(f"offsets/{like}").lines
            head = _with_watermark(head, self.text(f"commits/{like}"))
        lines = [to_spark_json(ends, compact=True)] if len(known) == 1 else self._by_source(ends, known)
        self.put(f"offsets/{batch_id}", "\n".join(["v1", head, *lines]))

    def put_commit(self, batch_id: int, like: int | None = None) -> None:
        """Write `commits/N` as the batch `like` has it; without one, as a batch without a watermark."""
        body = self._like(f"commits/{like}").body if like is not None else 'v1\n{"nextBatchWatermarkMs":0}'
        self.put(f"commits/{batch_id}", body)

    def put_metadata(self, query_id: str) -> None:
        """Write `metadata`, which makes the folder a checkpoint."""
        self.put("metadata", json.dumps({"id": query_id}, separators=(",", ":")))

    def put_initial(self, starts: Sequence[Offsets]) -> None:
        """Write `sources/K/0` for each source: where its first batch begins."""
        for source, offsets in enumerate(starts):
            # Spark writes a zero byte first, so that Spark 2.1.0 fails on the file instead of misreading it.
            self.put(f"sources/{source}/0", "\0v1\n" + to_spark_json(offsets, compact=True))

    def put(self, name: str, body: str | bytes) -> None:
        """Write one file, whole, and leave no checksum of what was there."""
        filesystem, root = self._filesystem
        path = f"{root}/{name}"
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        if not name.startswith("."):
            self._remove(checksum_name(name))
        put_whole_at(filesystem, path, body.encode() if isinstance(body, str) else body)

    def remove(self, name: str) -> None:
        """Remove one file with its checksum, if it is there."""
        self._remove(name)
        if not name.startswith("."):
            self._remove(checksum_name(name))

    def sizes(self) -> dict[str, int]:
        """Every file of the progress with its size; locks and notes about a run are left out.

        A file may go while they are listed, but no folder.
        """
        filesystem, root = self._filesystem
        if isinstance(filesystem, LocalFileSystem):
            # Not by fsspec: for one file that goes meanwhile it leaves out the whole folder.
            paths = [f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names]
            found = {path: _size(path) for path in paths}
        else:
            found = {str(path): int(about["size"] or 0) for path, about in filesystem.find(root, detail=True).items()}
        names = {path[len(root) + 1 :]: size for path, size in found.items()}
        return {n: size for n, size in sorted(names.items()) if not n.startswith(".penstock.") or n in PROGRESS_NOTES}

    def text(self, name: str) -> str | None:
        """The text of a file; None if it is missing."""
        body = self._body(name)
        try:
            return body.decode() if body is not None else None
        except UnicodeDecodeError as error:
            raise self._broken(name, "it is not text") from error

    def _by_source(self, ends: Offsets, known: Sequence[str]) -> list[str]:
        """A line for each source; a source is recognised by the topics that it had before."""
        topics = []
        for source, line in enumerate(known):
            [offsets] = self._like(f"sources/{source}/0").lines if line == NO_OFFSETS else [line]
            topics.append(set(json.loads(offsets)))
        unknown = sorted({at.topic for at in ends} - set().union(*topics))
        if unknown:
            raise self._broken("offsets", f"no source of it reads {', '.join(unknown)}")
        parts = [{at: end for at, end in ends.items() if at.topic in mine} for mine in topics]
        return [to_spark_json(part, compact=True) if part else NO_OFFSETS for part in parts]

    def _batches(self, folder: str) -> list[int]:
        filesystem, root = self._filesystem
        try:
            names = [str(p).rsplit("/", 1)[-1] for p in filesystem.ls(f"{root}/{folder}", detail=False)]
        except FileNotFoundError:
            return []
        return [int(name) for name in names if name.isdigit()]

    def _file(self, name: str) -> LogFile | None:
        """A file that can be used; None if it is missing."""
        body = self._body(name)
        if body is None:
            return None
        file = LogFile(name, body)
        if file.problem is not None:
            raise self._broken(name, file.problem)
        return file

    def _required(self, name: str) -> LogFile:
        file = self._file(name)
        if file is None:
            raise self._broken(name, "it is missing")
        return file

    def _like(self, name: str) -> LogFile:
        """A file of which only a part is needed: the rest of it may be unusable."""
        body = self._body(name)
        if body is None:
            raise self._broken(name, "it is missing")
        return LogFile(name, body)

    def _body(self, name: str) -> bytes | None:
        filesystem, root = self._filesystem
        try:
            return bytes(filesystem.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def _remove(self, name: str) -> None:
        filesystem, root = self._filesystem
        with suppress(FileNotFoundError):
            filesystem.rm_file(f"{root}/{name}")

    def _broken(self, name: str, found: str) -> TerminalError:
        return TerminalError(
            "CHECKPOINT_BROKEN",
            f"checkpoint {self.path}: {name} cannot be used",
            context={"found": found},
            hint="do not delete the checkpoint: its offsets are the truth; restore it from a backup\n"
            "penstock checkpoint verify FILE says what is wrong with it",
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _with_watermark(head: str, commit: str | None) -> str:
    """The head of a batch's offsets, with the watermark that the commit of the batch before left."""
    if commit is None:
        return head
    left = json.loads(commit.partition("\n")[2] or "{}").get("nextBatchWatermarkMs")
    body = json.loads(head)
    return json.dumps(body | ({"batchWatermarkMs": left} if left is not None else {}), separators=(",", ":"))


def ranges_between(starts: Offsets, ends: Offsets) -> tuple[list[OffsetRange], list[tuple[TopicPartition, int, int]]]:
    """The ranges of a batch, and the partitions whose end lies before their start (the log moved back).

    A partition that is new in `ends` begins at 0, as in Spark's own source.
    """
    ranges, backwards = [], []
    for at, end in sorted(ends.items()):
        start = starts.get(at, 0)
        if end < start:
            backwards.append((at, start, end))
        else:
            ranges.append(OffsetRange(at.topic, at.partition, start, end))
    return ranges, backwards
