"""What the page shows of a pipeline, as JSON: its row in the overview, and its details.

`Facts` is everything known about a pipeline at one moment; the rest are views of it. Details are made at most once a
second, however many pages show them. The heat strip (lag by partition over time) is sent whole, or only what is new.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.checkpoint.presence import REPAIRS, RunNote, RunStatus, shown_state
from penstock.config import PipelineConfig
from penstock.dashboard.flow_graph import Rates, flow_graph
from penstock.dashboard.recent import Numbers, Place, Recent, in_order, in_utc, moment, shown_time
from penstock.model import TopicPartition
from penstock.ops.lag import hot_partitions
from penstock.wording import in_words


@dataclass(frozen=True)
class Panel:
    """The result of an expensive query, in the shape that the page needs, or why there is none."""

    at: str
    found: dict[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Facts:
    """One pipeline."""

    id: str
    file: str
    config: PipelineConfig | None = None
    wrong: str | None = None
    """Why the file cannot be read."""
    run: RunStatus | None = None
    unseen: str | None = None
    """Why the checkpoint cannot be read."""
    recent: Recent = field(default_factory=Recent)
    panels: dict[str, Panel] = field(default_factory=dict)
    """The results of the expensive queries, by name."""

    @property
    def running(self) -> bool:
        """Whether somebody has the checkpoint now."""
        return self.run is not None and self.run.running

    @property
    def state(self) -> str:
        """As `penstock status` says it."""
        if self.config is None:
            return "wrong file"
        return shown_state(self.run)

    @property
    def newest_column(self) -> int:
        """The number of the newest column of lags; 0 where there is none."""
        return self.recent.columns[-1].number if self.recent.columns else 0

    def found(self, name: str) -> dict[str, Any]:
        """What is on a panel; nothing before its first query."""
        panel = self.panels.get(name)
        return (panel.found if panel is not None else None) or {}

    def without_run(self, error: Exception) -> Facts:
        """The facts without what the run wrote, if that cannot be shown."""
        return replace(self, run=None, recent=Recent(), unseen=f"showing what the run wrote: {type(error).__name__}")


_SERIES = 60
_FAR_BEHIND = 300.0
_NO_BATCH = 600.0
_A_MINUTE = 12
"""Columns: a run reports its lag every five seconds."""
_GROWTH = 1.2


def overview_row(facts: Facts, now: float) -> dict[str, Any]:
    """What the overview says of a pipeline."""
    recent = facts.recent
    note = facts.run.note if facts.run is not None else None
    rates = rates_of(list(recent.batches), recent.started_at, now) if facts.running else rates_of((), None, now)
    health, problem = _health(facts, now)
    return {
        "id": facts.id,
        "file": facts.file,
        "name": facts.config.name if facts.config is not None else facts.id,
        "state": facts.state,
        "doing": note.facts.doing if note is not None and facts.running else None,
        "since": _since(facts, note),
        "lane": (note.facts.lane if note is not None else None) or recent.lane,
        **_last_batch(facts, note),
        "rows_in_rate": rates.rows_in,
        "rows_out_rate": rates.rows_out,
        "quarantined_rate": rates.quarantined,
        "lag": lag_of(facts),
        "behind_seconds": behind_of(facts),
        "cap": recent.cap,
        "health": health,
        "problem": problem,
        "lag_series": [column.total for column in list(recent.columns)[-_SERIES:]],
    }


def lag_of(facts: Facts) -> int | None:
    """The waiting offsets, as last reported by the run or by the brokers."""
    if facts.config is None:
        return None
    if facts.recent.columns:
        return facts.recent.columns[-1].total
    note = facts.run.note if facts.run is not None else None
    return note.facts.lag if note is not None else None


def behind_of(facts: Facts) -> float | None:
    """The age of the first unread record; 0 where nothing waits, none where it is not known."""
    columns = facts.recent.columns
    if facts.config is None or not columns:
        return None
    if columns[-1].total == 0:
        return 0.0
    if columns[-1].behind_seconds is not None:
        return columns[-1].behind_seconds
    queried: float | None = facts.found("lag").get("behind_seconds")
    return queried


def _since(facts: Facts, note: RunNote | None) -> str | None:
    if note is None:
        return None
    return in_utc(note.started_at if facts.running else note.ended_at or note.at)


def _last_batch(facts: Facts, note: RunNote | None) -> dict[str, Any]:
    if facts.recent.batches:
        last = facts.recent.batches[-1]
        return {"batch_id": last["id"], "batch_at": last["at"], "batch_seconds": last["seconds"]}
    if note is None:
        return {"batch_id": None, "batch_at": None, "batch_seconds": None}
    noted = note.facts
    at = shown_time(noted.batch_at) if noted.batch_at is not None else None
    return {"batch_id": noted.batch_id, "batch_at": at, "batch_seconds": noted.batch_seconds}


def _health(facts: Facts, now: float) -> tuple[str, str | None]:
    """The health of a pipeline, and the one thing to know about it."""
    for health, problem in (("bad", _broken(facts)), ("warn", _troubled(facts, now))):
        if problem is not None:
            return health, problem
    return "ok", None


def _broken(facts: Facts) -> str | None:
    if facts.config is None:
        return facts.wrong
    if facts.unseen is not None:
        return facts.unseen
    blocking = facts.found("files").get("blocking") if not facts.running else None
    if blocking:
        return str(blocking)
    ended = facts.run.ended_badly if facts.run is not None else None
    return f"{ended}; {REPAIRS}" if ended is not None and facts.state == "killed" else ended


def _troubled(facts: Facts, now: float) -> str | None:
    asked = facts.panels.get("lag")
    if not facts.running:
        return asked.problem if asked is not None else None
    recent = facts.recent
    note = facts.run.note if facts.run is not None else None
    if note is not None and note.facts.doing.startswith("waiting"):
        return f"the run is {note.facts.doing}"
    if note is not None and note.facts.stalled is not None:
        return note.facts.stalled
    if recent.firing:
        return f"{recent.firing[-1]['rule']}: {recent.firing[-1]['text']}"
    behind, columns = behind_of(facts), recent.columns
    if behind is not None and behind > _FAR_BEHIND:
        before = columns[-_A_MINUTE].total if len(columns) >= _A_MINUTE else columns[0].total
        growing = ", and the lag grows" if columns[-1].total > before * _GROWTH else ""
        return f"{in_words(behind)} behind{growing}"
    waiting = lag_of(facts)
    last = moment(recent.batches[-1]["at"]) if recent.batches else None
    if waiting and last is not None and now - last > _NO_BATCH:
        return f"no batch for {in_words(now - last)}, and {waiting:,} offsets wait"
    return asked.problem if asked is not None and not columns else None


_WINDOW = 60.0


def rates_of(batches: Sequence[Mapping[str, Any]], started_at: str | None, now: float) -> Rates:
    """The throughput of the batches of the last minute, over the time since the first of them began.

    If batches take longer than that, the last one counts until the next is overdue.
    """
    recent = []
    for batch in reversed(batches):
        if now - moment(batch["at"]) > _WINDOW:
            break
        recent.append(batch)
    if recent:
        first = recent[-1]
        began = moment(first["at"]) - first["seconds"]
        since = max(moment(started_at), now - _WINDOW) if started_at is not None else now - _WINDOW
        return _over(recent, max(now - min(began, since), 1.0))
    if batches:
        last = batches[-1]
        took = last["seconds"] + (last["waited"] or 0.0)
        if last["seconds"] > _WINDOW / 2 and now - moment(last["at"]) < 2 * took:
            return _over([last], took)
    return Rates()


def _over(batches: Sequence[Mapping[str, Any]], seconds: float) -> Rates:
    def rate(name: str) -> float:
        return round(float(sum(batch[name] for batch in batches)) / seconds, 1)

    return Rates(rate("rows_in"), rate("rows_out"), rate("quarantined"))


_CHECKPOINT: dict[str, Any] = {"committed": None, "begun": None, "sinks": [], "findings": []}
_DIAGNOSIS: dict[str, Any] = {"at": None, "causes": [], "idle": None, "notes": []}


def detail(facts: Facts, now: float) -> dict[str, Any]:
    """The view of a pipeline. What was not queried yet is empty, or null."""
    row, recent = overview_row(facts, now), facts.recent
    rates = Rates(row["rows_in_rate"], row["rows_out_rate"], row["quarantined_rate"])
    graph: dict[str, Any] = {"nodes": [], "edges": []}
    if facts.config is not None:
        graph = flow_graph(facts.config, rates, recent.totals, len(recent.seen.places) or None)
    batches = list(recent.batches)
    return {
        **row,
        "flow": graph,
        "batches": batches,
        "phases": in_order(batches),
        "target": _target(facts),
        "quarantine": _quarantine(facts),
        "decisions": list(recent.decisions),
        "checkpoint": {**_CHECKPOINT, **facts.found("checkpoint"), "at": _looked_at(facts, "checkpoint")},
        "diagnosis": {**_DIAGNOSIS, **facts.found("diagnosis")},
        "lag_report": _lag_report(facts),
        "alerts": list(recent.alerts),
        "notices": [*recent.notices, *_unseen(facts)],
        "unseen": {name: _not_seen(facts, name) for name in ("checkpoint", "diagnosis", "quarantine")},
    }


def _target(facts: Facts) -> dict[str, Any] | None:
    """How long flow control wants a batch to take while there is a backlog, or that the file fixes the cap."""
    if facts.config is None:
        return None
    fixed = not facts.config.adaptive
    return {"seconds": None if fixed else facts.config.flow.target_batch.total_seconds(), "fixed": fixed}


def _quarantine(facts: Facts) -> dict[str, Any] | None:
    """From the table where there is one; else as counted by this run. None without a quarantine."""
    if facts.config is not None and facts.config.quarantine is None:
        return None
    found = facts.found("quarantine")
    counted = found.get("by_code")
    if counted is None:
        by_count = sorted(facts.recent.codes.items(), key=lambda one: (-one[1], one[0]))
        counted = [{"code": code, "count": count} for code, count in by_count]
    return {"by_code": counted, "samples": found.get("samples") or [], "today": found.get("today")}


def _lag_report(facts: Facts) -> dict[str, Any]:
    found, group = facts.found("lag"), facts.config.group if facts.config is not None else None
    return {
        "total": lag_of(facts),
        "behind_seconds": behind_of(facts),
        "growth": found.get("growth"),
        "catch_up_seconds": found.get("catch_up_seconds"),
        "group": group,
        "group_note": facts.recent.group_error or found.get("group_note"),
    }


def _looked_at(facts: Facts, name: str) -> str | None:
    return facts.panels[name].at if name in facts.panels else None


def _not_seen(facts: Facts, name: str) -> str | None:
    """Why a panel has nothing to show; None where it has."""
    panel = facts.panels.get(name)
    return "Loading…" if panel is None else panel.problem


def _unseen(facts: Facts) -> list[dict[str, Any]]:
    """What the dashboard itself could not read, each problem once."""
    problems = {panel.problem: panel.at for _, panel in sorted(facts.panels.items()) if panel.problem}
    return [{"at": at, "text": text} for text, at in problems.items()]


def partitions_json(recent: Recent, ages: Mapping[Place, float | None]) -> str:
    """The state of each partition; with the age of its first unread record, where it is known."""
    seen = recent.seen
    lags = recent.columns[-1].lags.tolist() if recent.columns else []
    by_place = {TopicPartition(*place): lag for place, lag in zip(seen.places, lags, strict=True) if lag >= 0}
    hot = hot_partitions(by_place)
    shown = [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": committed if committed >= 0 else None,
            "end": end,
            "lag": lag if lag >= 0 else None,
            "seconds_behind": ages.get(place) if lag else 0.0,
            "hot": TopicPartition(*place) in hot,
        }
        for place, committed, end, lag in zip(seen.places, seen.committed, seen.ends, lags, strict=True)
    ]
    return json.dumps(shown, separators=(",", ":"))


def heat_json(recent: Recent, partitions: str, after: int | None) -> str:
    """The strip; with `after` only the columns after that number, to be appended."""
    columns = [column for column in recent.columns if after is None or column.number > after]
    times = json.dumps([column.at for column in columns])
    lags = ",".join(_column(column.lags) for column in columns)
    append = "false" if after is None else "true"
    return f'{{"partitions":{partitions},"times":{times},"columns":[{lags}],"append":{append}}}'


def _column(lags: Numbers) -> str:
    return str(lags.tolist()).replace("-1", "null").replace(" ", "")


_MAX_AGE = 0.9


@dataclass(frozen=True)
class Sent:
    """What a page was sent last."""

    version: int
    order: int
    """The order of the partitions."""
    number: int
    """Of the newest column of the heat strip."""
    text: str


class Views:
    """Makes the JSON once for all pages. Not thread-safe."""

    def __init__(self) -> None:
        self._version = 0
        self._made_at = 0.0
        self._known: object = None
        self._body, self._partitions = "", "[]"
        self._sent: dict[int | None, Sent] = {}
        """What pages are sent of this version, by the newest column that they have."""

    def send(self, facts: Facts, before: Sent | None) -> Sent | None:
        """What a page does not have yet: the new columns, or all of them after a change of their order.

        None where it has everything.
        """
        recent = facts.recent
        if time.monotonic() - self._made_at > _MAX_AGE:
            self._made_at = time.monotonic()
            self._make(facts)
        if before is not None and before.version == self._version:
            return None
        after = before.number if before is not None and before.order == recent.order else None
        if after not in self._sent:
            # Kept with the text: a column that comes later is not in it, and is sent with the next version.
            text = f'{self._body[:-1]},"heat":{heat_json(recent, self._partitions, after)}}}'
            self._sent[after] = Sent(self._version, recent.order, facts.newest_column, text)
        return self._sent[after]

    def _make(self, facts: Facts) -> None:
        known = (facts.recent, facts.newest_column, facts.panels.get("lag"))
        partitions = self._partitions
        if known != self._known:
            partitions = partitions_json(facts.recent, facts.found("lag").get("ages", {}))
        body = json.dumps(detail(facts, time.time()), separators=(",", ":"))
        if known != self._known or body != self._body:
            self._version += 1
            self._sent = {}
        self._known, self._body, self._partitions = known, body, partitions
