"""Spark's checkpoint as data: query id, offset log, commit log. No JVM; local paths and, by fsspec, others.

`offsets/N` is written before batch N runs, `commits/N` after it. `offsets/N` without `commits/N` means that
Spark will run N again with exactly those offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from penstock.checkpoint.logs import AGAIN_NOTE, STATE_NOTE, TOPICS_NOTE, LogFile, Offsets
from penstock.checkpoint.writing import put_whole_at
from penstock.errors import TerminalError
from penstock.model import BatchToken, OffsetRange, TopicPartition
from penstock.storage import Storage

_START_NOTE = ".penstock.start"
_MAINTAINED_NOTE = ".penstock.maintained"
_SINKS_NOTE = ".penstock.sinks"


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
        return self.storage.filesystem(self.path)

    def exists(self) -> bool:
        """Whether a query has ever begun a batch here."""
        return self.query_id() is not None or self.last_begun() is not None

    def query_id(self) -> str | None:
        """The id that Spark gave the query at its first start; `None` where there is no metadata file."""
        file = self._file("metadata")
        return file.query_id if file is not None else None

    def last_begun(self) -> int | None:
        """The newest batch whose offsets are written."""
        return max(self._batches("offsets"), default=None)

    def last_committed(self) -> int | None:
        """The newest batch that Spark calls done."""
        return max(self._batches("commits"), default=None)

    def ends(self, batch_id: int) -> Offsets:
        """Where a batch ends, for each partition."""
        return self._offset_log(batch_id).ends or {}

    def watermark(self, batch_id: int) -> int:
        """The watermark that a batch runs with, in milliseconds; 0 where there is none."""
        name = f"offsets/{batch_id}"
        body = self._body(name)
        head = LogFile(name, body).head if body is not None else None
        if head is None:
            raise self._broken(name, "it is not there" if body is None else "it is cut short")
        return int(head.get("batchWatermarkMs", 0))

    def late_by(self, batch_id: int) -> int:
        """The watermark by which Spark takes rows of a batch as late: that of the batch before."""
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
            raise self._broken("sources/0/0", "it is not there")
        return initial

    def start_used(self) -> str | None:
        """The file's `start` at the first run, as Penstock noted it beside Spark's files."""
        return self._text(_START_NOTE)

    def note_start(self, start: str) -> None:
        """Note the `start` of a first run."""
        self._note(_START_NOTE, start)

    def state_noted(self) -> str | None:
        """What the state of this checkpoint depends on, as Penstock noted it at the first run."""
        return self._text(STATE_NOTE)

    def note_state(self, identity: str) -> None:
        """Note what the state depends on."""
        self._note(STATE_NOTE, identity)

    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that the offsets are of, as far as they were noted."""
        file = self._file(TOPICS_NOTE)
        return file.ids if file is not None else {}

    def note_topic_ids(self, ids: dict[str, str]) -> None:
        """Note the ids of the topics."""
        self._note(TOPICS_NOTE, json.dumps(ids, sort_keys=True))

    def sinks_noted(self) -> dict[str, NotedSink]:
        """The sinks of the last run with this checkpoint: a hint, never a proof."""
        text = self._text(_SINKS_NOTE)
        try:
            found = json.loads(text) if text is not None else {}
            return {str(name): NotedSink(str(at), int(first)) for name, (at, first) in found.items()}
        except (ValueError, AttributeError, TypeError):
            return {}

    def note_sinks(self, targets: Mapping[str, str], held: Collection[str] = ()) -> None:
        """At the start of a run: note its sinks with their targets; `held` are those that hold something already."""
        before, done = self.sinks_noted(), self.last_committed()
        next_batch = done + 1 if done is not None else 0
        noted = {}
        for name, target in targets.items():
            first = 0 if name in held else next_batch
            known = before.get(name)
            noted[name] = (target, min(first, known.first_batch) if known and known.target == target else first)
        self._note(_SINKS_NOTE, json.dumps(noted, sort_keys=True))

    def maintained_at(self) -> float | None:
        """When the tables were last looked after, in seconds since 1970."""
        try:
            return float(self._text(_MAINTAINED_NOTE) or "")
        except ValueError:
            return None

    def note_maintained(self, moment: float) -> None:
        """Note that the tables were looked after: runs that end soon share one schedule."""
        self._note(_MAINTAINED_NOTE, str(moment))

    def again(self) -> list[BatchToken]:
        """The batches that a restore left to be run again, oldest first."""
        file = self._file(AGAIN_NOTE)
        return list(file.tokens) if file is not None else []

    def note_again(self, tokens: Sequence[BatchToken]) -> None:
        """Note the batches to be run again; with none the note goes."""
        filesystem, root = self._filesystem
        if tokens:
            self._note(AGAIN_NOTE, "\n".join(token.to_json() for token in tokens))
        elif filesystem.exists(f"{root}/{AGAIN_NOTE}"):
            filesystem.rm_file(f"{root}/{AGAIN_NOTE}")

    def _offset_log(self, batch_id: int) -> LogFile:
        file = self._file(f"offsets/{batch_id}")
        if file is None:
            raise self._broken(f"offsets/{batch_id}", "it is not there")
        return file

    def _note(self, name: str, text: str) -> None:
        filesystem, root = self._filesystem
        filesystem.makedirs(root, exist_ok=True)
        # A full disk must not leave the note empty that was there.
        put_whole_at(filesystem, f"{root}/{name}", text.encode())

    def _batches(self, folder: str) -> list[int]:
        filesystem, root = self._filesystem
        try:
            names = [str(p).rsplit("/", 1)[-1] for p in filesystem.ls(f"{root}/{folder}", detail=False)]
        except FileNotFoundError:
            return []
        return [int(name) for name in names if name.isdigit()]

    def _file(self, name: str) -> LogFile | None:
        """A file that can be used; none where it is not there."""
        body = self._body(name)
        if body is None:
            return None
        file = LogFile(name, body)
        if file.problem is not None:
            raise self._broken(name, file.problem)
        return file

    def _text(self, name: str) -> str | None:
        body = self._body(name)
        try:
            return body.decode() if body is not None else None
        except UnicodeDecodeError as error:
            raise self._broken(name, "it is not text") from error

    def _body(self, name: str) -> bytes | None:
        filesystem, root = self._filesystem
        try:
            return bytes(filesystem.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def _broken(self, name: str, found: str) -> TerminalError:
        return TerminalError(
            "CHECKPOINT_BROKEN",
            f"reading checkpoint {self.path}: {name} cannot be used",
            context={"found": found},
            hint="restore the checkpoint from a copy; do not delete it: its offsets are the truth",
        )


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
