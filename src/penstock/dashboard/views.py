"""The details of one pipeline in JSON, made at most once a second however many pages show them.

The heat strip (lag by partition over time) is sent in pieces: whole, or only what is new.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.dashboard.flow_graph import flow_graph
from penstock.dashboard.overview import Facts, Rates, behind_of, lag_of, overview_row
from penstock.dashboard.recent import Numbers, Place, Recent, in_order
from penstock.model import TopicPartition
from penstock.ops.lag import hot_partitions

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
        self._texts: dict[int | None, str] = {}

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
        if after not in self._texts:
            heat = heat_json(recent, self._partitions, after)
            self._texts[after] = f'{self._body[:-1]},"heat":{heat}}}'
        return Sent(self._version, recent.order, facts.newest_column, self._texts[after])

    def _make(self, facts: Facts) -> None:
        known = (facts.recent, facts.newest_column, facts.panels.get("lag"))
        partitions = self._partitions
        if known != self._known:
            partitions = partitions_json(facts.recent, facts.found("lag").get("ages", {}))
        body = json.dumps(detail(facts, time.time()), separators=(",", ":"))
        if known != self._known or body != self._body:
            self._version += 1
            self._texts = {}
        self._known, self._body, self._partitions = known, body, partitions
