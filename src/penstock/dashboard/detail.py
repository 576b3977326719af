"""Everything that the page shows of one pipeline but the heat strip, which is sent in pieces."""

from __future__ import annotations

from typing import Any

from penstock.dashboard.batch_phases import in_order
from penstock.dashboard.facts import Facts
from penstock.dashboard.flow_graph import flow_graph
from penstock.dashboard.overview import behind_of, lag_of, overview_row
from penstock.dashboard.rates import Rates

_CHECKPOINT: dict[str, Any] = {"committed": None, "begun": None, "sinks": [], "findings": []}
_DIAGNOSIS: dict[str, Any] = {"at": None, "causes": [], "idle": None, "notes": []}


def detail(facts: Facts, now: float) -> dict[str, Any]:
    """The view of a pipeline. What was not looked at yet is empty, or null."""
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
    """By the table where there is one; else the codes that this run has counted. None where there is no quarantine."""
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
    return facts.looks[name].at if name in facts.looks else None


def _not_seen(facts: Facts, name: str) -> str | None:
    """Why a look has nothing to show; None where it has."""
    looked = facts.looks.get(name)
    return "Being looked at…" if looked is None else looked.problem


def _unseen(facts: Facts) -> list[dict[str, Any]]:
    """What the dashboard itself could not see, each trouble once."""
    told = {look.problem: look.at for _, look in sorted(facts.looks.items()) if look.problem}
    return [{"at": at, "text": text} for text, at in told.items()]
