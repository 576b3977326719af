"""Where the time of a batch went, on the driver's clock: the phases add up to the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_IN_TASKS = ("read", "decode", "transform", "stage", "finish")
_FIRST = ("offsets", *_IN_TASKS)
_LAST = ("commit", "other")


def wall_phases(seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
    """Driver seconds by phase. What the tasks did side by side shares the time of the stage by its own seconds."""
    found: dict[str, float] = {}
    if (offsets := _number(phases.get("offsets"))) > 0:
        found["offsets"] = offsets
    staging = _number(phases.get("stage"))
    in_tasks = {name: _number(phases.get(f"task_{name}")) for name in _IN_TASKS}
    total = sum(in_tasks.values())
    if staging > 0 and total > 0:
        found.update({name: staging * share / total for name, share in in_tasks.items() if share > 0})
    elif staging > 0:
        found["stage"] = staging
    commits = {name: _number(value) for name, value in phases.items() if name.startswith("commit:")}
    found.update({name: value for name, value in commits.items() if value > 0})
    if (rest := _number(phases.get("commit")) - sum(commits.values())) > 0.001:
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


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
