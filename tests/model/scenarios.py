"""The families of actions, each explored exhaustively. Together they have every action and every error code.

The numbers say how often an action may happen on one path. `DEEP` repeats some families with more of everything.

Not explored, because nothing in a target can tell them apart:
- a run hangs, another one takes over, and the target is restored to exactly the version that the first one believes in;
- a restore is undone although something was committed since, or while a process is at work;
- a target is put back to before its first commit by a copy that shows nothing of it, and the checkpoint with its hint
  of what it has written is lost too, while the sink is the only one;
- a sink is renamed while a run under its old name is still at work.
"""

from __future__ import annotations

from tests.model.world import Scenario

TWO = ("s1", "s2")
NONE_BAD = {"A": frozenset[tuple[int, int]]()}
ALL_BAD = {"A": frozenset({(0, 0), (0, 1)}), "B": frozenset()}
SECOND_TOPIC_BAD = {"A": frozenset({(1, 0)}), "B": frozenset()}

_DEFAULT = [
    # Two runs at once, and answers that do not arrive.
    Scenario("takeover", {"start": 2, "edit": 1}, runs=2),
    Scenario("answers", {"start": 2, "crash": 1, "no answer": 2, "edit": 1}),
    Scenario("resumed", {"start": 1, "resume": 1, "lose the checkpoint": 1}, runs=2),
    # Several sinks; sinks that come, go and are renamed.
    Scenario("sinks", {"start": 2, "crash": 1, "edit": 1}, sinks=TWO),
    Scenario("changed sinks", {"start": 3, "catch-up": 1, "crash": 1, "add a sink": 1, "remove a sink": 1}, sizes=(1,)),
    Scenario("renamed", {"start": 3, "catch-up": 1, "crash": 2, "rename": 2}, sizes=(1,)),
    # Targets, the quarantine and the checkpoint go back, alone and together.
    Scenario("restored", {"start": 2, "catch-up": 1, "crash": 1, "edit": 1, "restore": 1, "undo": 1}),
    Scenario("older copy", {"start": 2, "catch-up": 1, "edit": 1, "older copy": 1}),
    Scenario("older copy at a start", {"start": 3, "crash": 1, "older copy": 1}, sizes=(1,), bad=NONE_BAD),
    Scenario("quarantine", {"start": 2, "catch-up": 1, "crash": 1, "edit": 1, "restore the quarantine": 1, "undo": 1}),
    Scenario("older quarantine", {"start": 2, "catch-up": 1, "edit": 1, "older copy of the quarantine": 1}),
    Scenario(
        "two records back",
        {"start": 2, "catch-up": 1, "crash": 1, "restore the quarantine": 1},
        sizes=(2,),
        bad=ALL_BAD,
    ),
    Scenario(
        "lost checkpoint",
        {"start": 1, "resume": 1, "accept": 1, "crash": 1, "lose the checkpoint": 1},
    ),
    Scenario("backup", {"start": 2, "crash": 1, "lose the checkpoint": 1, "restore a backup": 1}),
    Scenario("lost checkpoint, edited", {"start": 1, "resume": 1, "accept": 1, "edit": 1, "lose the checkpoint": 1}),
    Scenario(
        "checkpoint back",
        {"start": 2, "crash": 1, "checkpoint back": 1, "repair": 1},
        records=(3, 0),
        sizes=(1, 3),
        bad={"A": frozenset({(0, 2)})},
    ),
    Scenario("fork", {"start": 2, "crash": 1, "fork": 1, "resume": 1, "catch-up": 1}),
    Scenario("target and checkpoint back", {"start": 2, "edit": 1, "restore": 1, "checkpoint back": 1}, bad=ALL_BAD),
    Scenario(
        "all back",
        {"start": 2, "resume": 1, "lose the checkpoint": 1, "restore": 1, "restore the quarantine": 1},
    ),
    Scenario(
        "two sinks back",
        {"start": 1, "resume": 1, "crash": 1, "restore": 1, "lose the checkpoint": 1},
        sinks=TWO,
        sizes=(1,),
    ),
    # Redrives and replays.
    Scenario("redrive", {"start": 1, "redrive": 2, "edit": 1, "crash": 1}, runs=2, sizes=(2,)),
    Scenario("redrive taken back", {"start": 2, "redrive": 2, "edit": 1, "restore": 1, "catch-up": 1}, sizes=(2,)),
    Scenario(
        "redrive of an open batch",
        {"start": 2, "crash": 1, "redrive": 1, "edit": 1, "restore the quarantine": 1, "catch-up": 1},
        sizes=(2,),
    ),
    Scenario("replay", {"start": 1, "redrive": 1, "replay": 1, "edit": 1, "crash": 1}, runs=2, sizes=(2,)),
    Scenario("replay one sink", {"start": 1, "replay one sink": 1, "redrive": 1, "edit": 1}, sinks=TWO, sizes=(2,)),
    Scenario(
        "replay taken back",
        {"start": 2, "replay": 1, "edit": 1, "restore the quarantine": 1, "catch-up": 1},
        sizes=(2,),
    ),
    Scenario("replay elsewhere", {"start": 1, "copy": 2, "edit": 1, "redrive": 1}, runs=2, sizes=(2,)),
    Scenario("shared table", {"start": 1, "other": 2, "replay": 1, "edit": 1, "restore": 1}, other=True, sizes=(2,)),
    # Topics that appear, are left out of the definition, and are deleted and created again.
    Scenario(
        "new topic",
        {"start": 2, "topic appears": 1, "restore": 1, "catch-up": 1},
        records=(1, 2),
        late=frozenset({1}),
        sizes=(1,),
        bad=SECOND_TOPIC_BAD,
    ),
    Scenario(
        "topic left out",
        {"start": 3, "topic left out": 2, "crash": 1},
        records=(2, 1),
        sizes=(1,),
        bad=NONE_BAD,
    ),
    Scenario(
        "topic again",
        {"start": 2, "topic created again": 1, "crash": 1, "restore": 1},
        records=(0, 2),
        bad=SECOND_TOPIC_BAD,
    ),
    Scenario(
        "topic again with two runs",
        {"start": 2, "topic created again": 1},
        records=(0, 2),
        runs=2,
        bad=NONE_BAD,
    ),
]

_DEEP = [
    Scenario("takeover, deep", {"start": 3, "edit": 1, "no answer": 1}, runs=2),
    Scenario("resumed, deep", {"start": 1, "resume": 1, "edit": 1, "lose the checkpoint": 1}, runs=2),
    Scenario("two sinks, deep", {"start": 2, "edit": 1}, sinks=TWO, runs=2, sizes=(2,)),
    Scenario(
        "renamed, deep",
        {"start": 3, "catch-up": 1, "crash": 2, "add a sink": 1, "remove a sink": 1, "rename": 2},
    ),
    Scenario("going back, deep", {"start": 3, "catch-up": 1, "crash": 1, "edit": 1, "restore": 1, "older copy": 1}),
    Scenario(
        "quarantine going back, deep",
        {
            "start": 3,
            "catch-up": 1,
            "crash": 1,
            "edit": 1,
            "restore the quarantine": 1,
            "older copy of the quarantine": 1,
        },
    ),
    Scenario(
        "all back, deep",
        {
            "start": 2,
            "catch-up": 1,
            "resume": 1,
            "crash": 1,
            "lose the checkpoint": 1,
            "restore": 1,
            "restore the quarantine": 1,
            "undo": 1,
        },
    ),
    Scenario(
        "two sinks back, deep",
        {"start": 2, "catch-up": 1, "resume": 1, "crash": 1, "edit": 1, "restore": 1, "lose the checkpoint": 1},
        sinks=TWO,
        sizes=(2,),
    ),
    Scenario(
        "checkpoint, deep",
        {"start": 3, "crash": 1, "edit": 1, "checkpoint back": 1, "fork": 1, "repair": 1, "resume": 1},
    ),
    Scenario("redrive, deep", {"start": 1, "redrive": 2, "edit": 1, "crash": 1, "restore": 1, "no answer": 1}, runs=2),
    Scenario("replay, deep", {"start": 1, "redrive": 1, "replay": 2, "edit": 1, "crash": 1}, runs=2, sizes=(2,)),
]

DEFAULT = {scenario.name: scenario for scenario in _DEFAULT}
DEEP = {scenario.name: scenario for scenario in _DEEP}
