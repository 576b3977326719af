"""What people and faults do, and the ways out that the hints of the error codes name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.rewrites import Machine
from tests.model.runs import DONE, QUARANTINE_WENT_BACK, Outcome
from tests.model.world import (
    NAMES,
    OTHER,
    TABLE_OF,
    Checkpoint,
    Record,
    Row,
    Target,
    World,
    doubled,
    is_written,
    lost,
    token_of,
)

from penstock.model import Verdict

MODES = {"start": "run", "resume": "resume", "catch-up": "catch-up", "accept": "accept"}


def actions(machine: Machine, world: World) -> Iterator[Outcome]:
    """Everything that may happen next."""
    can, spend = machine.scenario.can, machine.scenario.spend
    for slot, process in enumerate(world.processes):
        if process is not None:
            yield from machine.steps(world, slot)
            if can(world, "crash"):
                yield Outcome(f"{process.kind} {slot + 1}: crash", spend(world, "crash").process(slot, None))
    free = next((slot for slot, process in enumerate(world.processes) if process is None), None)
    if free is not None:
        for action, mode in MODES.items():
            if can(world, action):
                yield machine.start(spend(world, action), free, mode)
        if can(world, "redrive"):
            yield machine.redrive(spend(world, "redrive"), free)
        if can(world, "replay"):
            yield machine.replay(spend(world, "replay"), free, world.sinks)
        if can(world, "replay one sink") and len(world.sinks) > 1:
            yield machine.replay(spend(world, "replay one sink"), free, world.sinks[:1])
        if can(world, "copy"):
            yield machine.copy(spend(world, "copy"), free)
    yield from _restores(machine, world)
    yield from _checkpoints(machine, world)
    yield from _edits(machine, world)
    if can(world, "other") and world.other >= 0:
        yield _other(machine, spend(world, "other"))


def _restores(machine: Machine, world: World) -> Iterator[Outcome]:
    can, spend = machine.scenario.can, machine.scenario.spend
    for name in NAMES[:3]:
        of = " the quarantine" if name == "q" else ""
        target = world.target(name)
        for at, older in enumerate(target.past):
            if older == target.now:
                continue
            if can(world, f"restore{of}"):
                missing = {**dict(target.now.lost), **dict(target.now.positions)}
                gone = tuple(sorted((o, p) for o, p in missing.items() if o not in dict(older.positions)))
                put = Target(older._replace(lost=gone), target.past[:at], target.now)
                yield Outcome(
                    f"restore {name} to version {at}", _disturbed(spend(world, f"restore{of}").put(name, put))
                )
            if can(world, f"older copy{' of' + of if of else ''}"):
                spent = spend(world, f"older copy{' of' + of if of else ''}")
                put = Target(older, target.past[:at], target.now)
                yield Outcome(f"{name} becomes an older copy, version {at}", _disturbed(spent.put(name, put)))
        if can(world, "undo") and target.undo is not None and not any(world.processes):
            yield Outcome(
                f"undo the restore of {name}", _disturbed(spend(world, "undo").put(name, Target(target.undo)))
            )


def _disturbed(world: World) -> World:
    return world._replace(processes=tuple(p and p._replace(disturbed=True) for p in world.processes))


def _checkpoints(machine: Machine, world: World) -> Iterator[Outcome]:
    can, spend = machine.scenario.can, machine.scenario.spend
    checkpoint = world.checkpoint
    for older in world.older:
        label = f"batch {older.next_batch}{', open' if older.is_open else ''}"
        if older != checkpoint and can(world, "checkpoint back"):
            spent = spend(world, "checkpoint back")
            yield Outcome(f"the checkpoint goes back to {label}", machine.place(spent, older))
        if older != checkpoint and can(world, "restore a backup"):
            spent = spend(world, "restore a backup")
            yield Outcome(f"restore the backup of {label}", repaired(machine, machine.place(spent, older)))
    if checkpoint is None:
        return
    if can(world, "lose the checkpoint"):
        yield Outcome("the checkpoint is lost", machine.place(spend(world, "lose the checkpoint"), None))
    if can(world, "fork"):
        for mark in dict.fromkeys(checkpoint.marks):
            forked, query = spend(world, "fork").new_query()
            yield Outcome(f"fork the checkpoint at {mark}", machine.place(forked, Checkpoint(query, 0, (mark,))))
    if can(world, "repair"):
        yield Outcome("repair the checkpoint", repaired(machine, spend(world, "repair")))


def repaired(machine: Machine, world: World) -> World:
    """The checkpoint put right from the targets."""
    fresh = world.checkpoint or Checkpoint("", 0, ((None, None),))
    held = {sink: world.target(TABLE_OF[sink]).position(sink) for sink in world.sinks}
    quarantine = world.target("q").position("q")
    if not any(is_written(text) for text in (*held.values(), quarantine)):
        return machine.place(world, None)
    world, checkpoint, _ = machine.rebuild(world, fresh, held, quarantine, opens=True)
    return machine.place(world, checkpoint._replace(seen=tuple((sink, -1) for sink, _ in fresh.seen)))


def _edits(machine: Machine, world: World) -> Iterator[Outcome]:
    can, spend = machine.scenario.can, machine.scenario.spend
    if can(world, "edit"):
        edited = spend(world, "edit")._replace(definition="B" if world.definition == "A" else "A")
        yield Outcome(f"edit the definition to {edited.definition}", edited)
    if can(world, "add a sink") and "s2" not in world.sinks:
        yield Outcome("add sink s2", spend(world, "add a sink")._replace(sinks=(*world.sinks, "s2")))
    if can(world, "remove a sink") and "s2" in world.sinks:
        yield Outcome("remove sink s2", spend(world, "remove a sink")._replace(sinks=world.sinks[:1]))
    if can(world, "rename"):
        name = "renamed" if world.sinks[0] == "s1" else "s1"
        renamed = spend(world, "rename")._replace(sinks=(name, *world.sinks[1:]))
        yield Outcome(f"name sink {world.sinks[0]} {name}", renamed)
    if can(world, "topic left out") and world.log[1] is not None:
        name = "leave out" if world.subscribed else "take in again"
        left = spend(world, "topic left out")._replace(subscribed=not world.subscribed)
        yield Outcome(f"{name} topic b in the definition", left)
    for topic, mark in enumerate(world.log):
        if mark is None and can(world, "topic appears") and machine.scenario.records[topic]:
            log = (*world.log[:topic], (0, machine.scenario.records[topic]), *world.log[topic + 1 :])
            yield Outcome("a topic appears", spend(world, "topic appears")._replace(log=log))
        if mark is not None and topic and can(world, "topic created again"):
            log = (*world.log[:topic], (mark[0] + 1, mark[1]), *world.log[topic + 1 :])
            yield Outcome("a topic is deleted and created again", spend(world, "topic created again")._replace(log=log))


def _other(machine: Machine, world: World) -> Outcome:
    """The second pipeline commits its next record to the first table, in one step."""
    held = world.target("t1").position(OTHER)
    start, end = ((0, world.other), None), ((0, world.other + 1), None)
    token = token_of("other", world.other, start, end)
    if machine.rules.verdict(held, token) is not Verdict.NEXT:
        return Outcome("the other pipeline stops", world)
    rows = [Row(Record(0, 0, world.other), OTHER, "stream")]
    landed = machine.land(world, "t1", OTHER, held, machine.rules.position(held, token), rows)
    assert landed is not None
    return Outcome("the other pipeline commits a record", landed._replace(other=world.other + 1))


# The ways out.

Way = Callable[[Machine, World], tuple[World, str] | None]
"""What it does to the world, and how the run is started then; none where there is nothing to do it with."""
SAME = "same"
"""By the command that stopped."""


def _undo(machine: Machine, world: World) -> tuple[World, str] | None:
    if all(target.undo is None for target in world.targets):
        return None  # something has been committed since: what was restored is in use
    back = tuple(Target(target.undo) if target.undo is not None else target for target in world.targets)
    return world._replace(targets=back), SAME


def _catch_up(machine: Machine, world: World) -> tuple[World, str]:
    return world, "catch-up" if world.checkpoint is not None else "resume and catch-up"


def _resume(machine: Machine, world: World) -> tuple[World, str]:
    return machine.place(world, None), "resume"


def _repair(machine: Machine, world: World) -> tuple[World, str]:
    return repaired(machine, world), "run"


def _backup(machine: Machine, world: World) -> tuple[World, str] | None:
    if not world.older:
        return None
    return repaired(machine, machine.place(world, world.older[-1])), "run"


def _accept(machine: Machine, world: World) -> tuple[World, str]:
    return world, "accept"


def _elsewhere(machine: Machine, world: World) -> tuple[World, str]:
    checkpoint = world.checkpoint and world.checkpoint._replace(seen=())
    empty = (Target(),) * len(NAMES)
    return world._replace(targets=empty, checkpoint=checkpoint, since=(), pardoned=(), other=-1), "run"


def _name_back(machine: Machine, world: World) -> tuple[World, str]:
    name = "s1" if world.sinks[0] == "renamed" else "renamed"
    return world._replace(sinks=(name, *world.sinks[1:])), "run"


def _again(machine: Machine, world: World) -> tuple[World, str]:
    return world, "run"


def _replay(machine: Machine, world: World) -> tuple[World, str] | None:
    outcome = machine.replay(world, 0, world.sinks)
    for _ in range(50):
        if outcome.world.processes[0] is None:
            return outcome.world, "run"
        outcome = next(iter(machine.steps(outcome.world, 0)))
    return None


def _give_up(machine: Machine, world: World) -> tuple[World, str]:
    return machine.give_up(world), "run"


WAYS: dict[str, dict[str, Way]] = {
    "TARGET_WENT_BACK": {"undo the restore": _undo, "catch up": _catch_up},
    QUARANTINE_WENT_BACK: {"undo the restore": _undo, "catch up": _catch_up},
    "FENCED": {"resume from the table": _resume},
    "CHECKPOINT_WENT_BACK": {"repair": _repair, "restore a backup": _backup},
    "SINK_TOKEN_MISMATCH": {"repair": _repair, "resume from the table": _resume},
    "SINK_HOLDS_OTHER_RUN": {
        "restore a backup": _backup,
        "resume from the table": _resume,
        "accept duplicates": _accept,
        "another table": _elsewhere,
    },
    "SINK_RENAMED": {"name it back": _name_back},
    "CONCURRENT_RUN": {"start again": _again},
    "SINK_COMMIT_CONFLICT": {"start again": _again},
    "REPLAY_UNFINISHED": {"finish the replay": _replay, "give it up": _give_up},
    "REPLAY_SHARED_TABLE": {"go on without": _again},
}


def settle(machine: Machine, world: World, mode: str) -> tuple[str, World, list[str]]:
    """Run alone until it ends: how, and what was done."""
    outcome = machine.start(world, 0, mode)
    shown = [outcome.label]
    for _ in range(200):
        if outcome.event is not None:
            return outcome.event, outcome.world, shown
        outcome = next(iter(machine.steps(outcome.world, 0)))
        shown.append(outcome.label)
    return "NO_END", outcome.world, shown


AT_ONCE = frozenset({"accept duplicates", "another table", "name it back"})
"""Ways out after which the run must not stop again at all."""


def dead_end(
    machine: Machine, world: World, code: str, before: tuple[str, ...] = (), mode: str = "run"
) -> list[str] | None:
    """The path into a dead end: a way out that leads to no good end or back to the same code, or no way out at all."""
    usable = 0
    for name, way in WAYS[code].items():
        found = way(machine, world)
        if found is None:
            continue
        put, then = found[0], mode if found[1] == SAME else found[1]
        event, after, shown = settle(machine, put, then)
        if way is _undo and event == code:
            continue  # it was another restore that led here
        usable += 1
        path = [f"{code}: {name}", *shown]
        if event == DONE:
            wrong = doubled(after) or lost(after, after.sinks, subscribed=after.subscribed)
            if wrong is not None:
                return [*path, wrong]
        elif event not in WAYS or event in (*before, code) or name in AT_ONCE:
            return [*path, event]
        else:
            deeper = dead_end(machine, after, event, (*before, code), then)
            if deeper is not None:
                return path + deeper
    return None if usable else [f"{code}: there is no way out"]
