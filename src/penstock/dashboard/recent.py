"""The last minutes of a pipeline, from its history: batches, lags, decisions, alerts, in bounded memory.

Entries are taken in one by one as they are written. Lags are columns of integers over one order of the partitions: 120
columns of a thousand partitions take a megabyte.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.metrics import BatchMetrics
from penstock.metrics.history import (
    AlertNoted,
    Entry,
    FlowChanged,
    GroupNoted,
    History,
    LagNoted,
    Notice,
    RetryNoted,
    RunEnded,
    RunStarted,
    parse_entry,
)

MOST_COLUMNS = 120
_MOST_BATCHES = 120
_MOST_TEXTS = 50
_UNKNOWN = -1
Place = tuple[str, int]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LagColumn:
    """The lag of every partition at one time; -1 where it is not known."""

    number: int
    """Counts up: a page has every column up to the last number that it was sent."""
    at: str
    lags: Numbers
    total: int
    behind_seconds: float | None


@dataclass(frozen=True)
class PartitionOffsets:
    """The last known offsets of each partition, in the order of the columns."""

    places: tuple[Place, ...] = ()
    committed: tuple[int, ...] = ()
    """-1 where it is not known."""
    ends: tuple[int, ...] = ()


class Recent:
    """The last minutes of one pipeline."""

    def __init__(self) -> None:
        self.batches: deque[dict[str, Any]] = deque(maxlen=_MOST_BATCHES)
        self.decisions: deque[dict[str, Any]] = deque(maxlen=_MOST_TEXTS)
        self.alerts: deque[dict[str, Any]] = deque(maxlen=_MOST_TEXTS)
        self.notices: deque[dict[str, Any]] = deque(maxlen=_MOST_TEXTS)
        self.columns: deque[LagColumn] = deque(maxlen=MOST_COLUMNS)
        self.seen = PartitionOffsets()
        self.order = 0
        """Counts the changes of the order of the partitions, after which columns sent before are useless."""
        self.totals = {"rows_in": 0, "rows_out": 0, "quarantined": 0}
        """Of this run, as far as its history goes back."""
        self.codes: dict[str, int] = {}
        self.started_at: str | None = None
        self.lane: str | None = None
        self.cap: int | None = None
        self.group_error: str | None = None
        self._numbers = 0
        self._shape: object = None

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        at = in_utc(entry.at)
        match entry.fact:
            case BatchMetrics() as batch:
                self._take_batch(at, batch)
            case FlowChanged() as flow:
                self.cap = flow.cap
                self.decisions.append({"at": at, **asdict(flow)})
            case LagNoted() as lag:
                self.add_column(at, lag.ends, lag.committed, lag.behind_seconds)
            case RunStarted(lane):
                self.started_at, self.lane = at, lane
                self.totals = dict.fromkeys(self.totals, 0)
                self.codes = {}
                self.group_error = None
            case RetryNoted(code, summary, _, delay):
                self.notices.append({"at": at, "text": f"{code} {summary}; retrying in {delay:.0f} s"})
            case RunEnded(error):
                self.notices.append({"at": at, "text": f"the run ended by {error}" if error else "the run ended"})
            case Notice(text):
                self.notices.append({"at": at, "text": text})
            case AlertNoted() as alert:
                self.alerts.append({"at": at, **asdict(alert)})
            case GroupNoted(error):
                self.group_error = error

    def add_column(
        self,
        at: str,
        ends: Mapping[str, Sequence[int | None]],
        committed: Mapping[str, Sequence[int | None]],
        behind_seconds: float | None = None,
    ) -> None:
        """Where every partition ends and how far the sinks are: a list for each topic, by partition number."""
        topics = sorted(ends)
        tops = [_numbers(ends[topic]) for topic in topics]
        done = [_numbers(committed.get(topic, ()), len(top)) for topic, top in zip(topics, tops, strict=True)]
        end = np.concatenate(tops) if tops else _numbers(())
        there = end != _UNKNOWN
        shape = (topics, [len(top) for top in tops], there.tobytes())
        if shape != self._shape:
            self._shape = shape
            self._reorder(tuple((t, int(p)) for t, top in zip(topics, tops, strict=True) for p in _known(top)))
        end, at_sinks = end[there], (np.concatenate(done) if done else end)[there]
        lags = np.where(at_sinks == _UNKNOWN, _UNKNOWN, np.maximum(end - at_sinks, 0))
        self.seen = PartitionOffsets(self.seen.places, tuple(at_sinks.tolist()), tuple(end.tolist()))
        self._numbers += 1
        total = int(lags[lags != _UNKNOWN].sum())
        self.columns.append(LagColumn(self._numbers, at, lags, total, behind_seconds))

    @property
    def firing(self) -> list[dict[str, Any]]:
        """The alerts that have not been resolved."""
        last = {alert["rule"]: alert for alert in self.alerts}
        return [alert for alert in last.values() if alert["state"] == "firing"]

    def _reorder(self, places: tuple[Place, ...]) -> None:
        before = {place: number for number, place in enumerate(self.seen.places)}
        moved = np.array([before.get(place, _UNKNOWN) for place in places], np.int64)
        kept = []
        for column in self.columns:
            # The index of partitions that were not there, -1, is that of the appended element.
            lags = np.append(column.lags, _UNKNOWN)[moved]
            kept.append(replace(column, lags=lags))
        self.columns.clear()
        self.columns.extend(kept)
        self.seen = PartitionOffsets(places)
        self.order += 1

    def _take_batch(self, at: str, batch: BatchMetrics) -> None:
        names = ("seconds", "waited", "rows_in", "rows_out", "quarantined", "offsets", "cap", "lag")
        figures = {name: getattr(batch, name) for name in names}
        phases = wall_phases(batch.seconds, batch.phases)
        self.batches.append({"id": batch.batch_id, "at": at, **figures, "phases": phases})
        self.cap = batch.cap
        for name in self.totals:
            self.totals[name] += figures[name]
        for code, count in batch.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count


def _numbers(line: Sequence[int | None], length: int | None = None) -> Numbers:
    """Integers, with -1 for unknown ones and for those missing up to a length."""
    try:
        found = np.array(line, np.int64)
    except TypeError:
        found = np.array([_UNKNOWN if one is None else one for one in line], np.int64)
    if length is None or len(found) == length:
        return found
    return np.concatenate([found, np.full(max(0, length - len(found)), _UNKNOWN, np.int64)])[:length]


def _known(numbers: Numbers) -> Numbers:
    return np.flatnonzero(numbers != _UNKNOWN).astype(np.int64)


def shown_time(text: str) -> str:
    """A time as the page gets it: in UTC, to the millisecond, so that times sort as texts."""
    return in_utc(datetime.fromisoformat(text))


def in_utc(when: datetime) -> str:
    """The same of a moment."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> float:
    """A time that the page gets, in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


_IN_TASKS = ("read", "decode", "transform", "stage", "finish")
_FIRST = ("offsets", *_IN_TASKS)
_LAST = ("commit", "other")


def wall_phases(seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
    """Where the time of a batch went on the driver's clock, by phase; the phases add up to the batch.

    What tasks do in parallel shares the time of the stage in proportion to its own seconds.
    """
    found: dict[str, float] = {}
    if (offsets := phases.get("offsets", 0.0)) > 0:
        found["offsets"] = offsets
    staging = phases.get("stage", 0.0)
    in_tasks = {name: phases.get(f"task_{name}", 0.0) for name in _IN_TASKS}
    total = sum(in_tasks.values())
    if staging > 0 and total > 0:
        found.update({name: staging * share / total for name, share in in_tasks.items() if share > 0})
    elif staging > 0:
        found["stage"] = staging
    commits = {name: value for name, value in phases.items() if name.startswith("commit:")}
    found.update({name: value for name, value in commits.items() if value > 0})
    if (rest := phases.get("commit", 0.0) - sum(commits.values())) > 0.001:
        found["commit"] = rest
    if (other := seconds - sum(found.values())) > 0.001:
        found["other"] = other
    return {name: round(value, 4) for name, value in found.items()}


def in_order(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every phase of some batches, in the order in which they happen."""
    names: dict[str, None] = {}
    for batch in batches:
        names.update(dict.fromkeys(batch["phases"]))
    commits = [name for name in names if name.startswith("commit:")]
    return [*(n for n in _FIRST if n in names), *commits, *(n for n in _LAST if n in names)]


_MOST_AT_FIRST = 3 << 20
"""How much of the past is read at first: 120 lines about a thousand partitions, or hours of a few."""


class HistoryTail:
    """Follows a run's history as it grows, reading nothing twice. A rotated file is read to its end first."""

    def __init__(self, history: History, most_at_first: int = _MOST_AT_FIRST) -> None:
        self._history = history
        self._most_at_first = most_at_first
        self._file: int | None = None
        self._position = 0
        self.bytes_read = 0

    def read(self) -> list[Entry]:
        """The new entries, oldest first. No file is opened if nothing was written."""
        found = _stat(self._history.path)
        size = found.st_size if found is not None else 0
        start, lines = self._position, list[bytes]()
        if self._file is None:
            older = _stat(self._history.older)
            if found is None and older is None:
                return []
            start = max(0, size - self._most_at_first)
            if older is not None and size < self._most_at_first:
                self._position = max(0, older.st_size - (self._most_at_first - size))
                lines = self._lines(self._history.older, older.st_size)
        elif found is None or found.st_ino != self._file or size < self._position:
            start, older = 0, _stat(self._history.older)
            if older is not None and older.st_ino == self._file:
                lines = self._lines(self._history.older, older.st_size)
        self._file, self._position = (found.st_ino if found is not None else 0), start
        if size > start:
            lines += self._lines(self._history.path, size)
        # A line cut at its beginning is no entry, and is dropped.
        return [entry for line in lines if (entry := parse_entry(line)) is not None]

    def _lines(self, path: Path, end: int) -> list[bytes]:
        """The whole lines up to an end; a line that is still being written is left for the next read."""
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                body = file.read(end - self._position)
        except OSError:
            return []
        self.bytes_read += len(body)
        whole = body.rfind(b"\n") + 1
        self._position += whole
        return body[:whole].splitlines()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
