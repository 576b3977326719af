"""Breadth-first search over every state that a scenario can reach; the first violation has the shortest path."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.model.operators import actions, dead_end
from tests.model.rewrites import Machine
from tests.model.runs import DONE
from tests.model.world import Process, Rules, Scenario, World, doubled, left_over, lost


@dataclass
class Exploration:
    """What was found."""

    states: int = 0
    events: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    path: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        steps = "\n".join(f"  {at}. {label}" for at, label in enumerate(self.path, 1))
        return f"{self.violation or 'no violation'} ({self.states} states)\n{steps}"


def explore(
    scenario: Scenario, rules: Rules | None = None, *, ways_out: bool = True, limit: int | None = None
) -> Exploration:
    """Look at every state; stop at the first violation, or after `limit` states."""
    machine = Machine(scenario, rules or Rules())
    alone = Machine(
        Scenario(scenario.name, {}, scenario.records, sinks=scenario.sinks, bad=scenario.bad), machine.rules
    )
    found = Exploration()
    first = scenario.beginning()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    queue, stopped = [first], set()

    def path(world: World, *more: str) -> list[str]:
        labels = [*reversed(more)]
        step = came_from[world]
        while step is not None:
            labels.append(step[1])
            step = came_from[step[0]]
        return labels[::-1]

    at = 0
    while at < len(queue) and (limit is None or at < limit):
        world = queue[at]
        at += 1
        for outcome in actions(machine, world):
            after = outcome.world
            wrong: str | None = None
            rest: list[str] = []
            if after not in came_from:
                wrong = doubled(after)
            if outcome.event is not None:
                found.events[outcome.event] += 1
                if outcome.event == DONE:
                    assert outcome.process is not None
                    wrong = wrong or _missing(scenario, after, outcome.process)
                elif ways_out and wrong is None:
                    bare = _bare(after)
                    if (outcome.event, bare) not in stopped:
                        stopped.add((outcome.event, bare))
                        rest = dead_end(alone, bare, outcome.event) or []
                        wrong = "a dead end" if rest else None
            if wrong is not None:
                found.states, found.violation = len(came_from), wrong
                shown = outcome.label + (f" -> {outcome.event}" if outcome.event else "")
                found.path = [*path(world, shown), *rest]
                return found
            if after not in came_from:
                came_from[after] = (world, outcome.label)
                queue.append(after)
    found.states = len(came_from)
    return found


def _missing(scenario: Scenario, world: World, process: Process) -> str | None:
    """What a process that ended well should have brought. The next start has to notice what was taken back under it."""
    if process.disturbed:
        return None
    if process.kind == "replay":
        return None
    if process.kind == "redrive":
        return left_over(scenario, world, process)
    return lost(world, process.sinks, subscribed=process.subscribed)


def _bare(world: World) -> World:
    """The world without other processes, and without what may still happen: somebody follows a hint."""
    targets = tuple(target._replace(past=()) for target in world.targets)
    return world._replace(processes=(None,), left=(), targets=targets)
