"""Random histories of what operators do, against real targets.

`make crash ARGS="-k operators --seed 17 --histories 200"` plays many; the default run plays a few. A history that fails
is shrunk to the shortest one that does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.operators.history import Action, World, draw, play

_numbers = itertools.count()


@pytest.fixture
def new_world(
    tmp_path: Path, topics: Any, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], World]]:
    open_: list[tuple[str, Any]] = []

    def close() -> None:
        for name, connection in open_:
            connection.close()
            postgres.drop_database(name)
        open_.clear()

    def make() -> World:
        close()  # the server's connections are limited
        name = postgres.create_database()
        monkeypatch.setenv("TEST_DB", postgres.url(name))
        connection = psycopg.connect(postgres.url(name), autocommit=True)
        open_.append((name, connection))
        folder = tmp_path / f"world-{next(_numbers)}"
        folder.mkdir()
        topic, clean = topics.create(1), topics.create(2, prefix="clean")
        return World(folder, topics, topic, clean, connection, f"orders-{topic}")

    yield make
    close()


def played(history: str) -> list[Action]:
    """A history as a failure prints it."""
    return [tuple(action.split()) for action in history.split(";")]


def wrong_after(world: World, actions: list[Action]) -> list[str]:
    """What is wrong after a history, a run that cannot go on among it."""
    try:
        return play(world, actions)
    except AssertionError as error:
        return [str(error)]


def shortest(new_world: Callable[[], World], actions: list[Action]) -> tuple[list[Action], list[str], list[str]]:
    """Leave actions out as long as what is left still fails."""
    wrong, log = ["as first played"], []
    at = 0
    while at < len(actions):
        fewer = [*actions[:at], *actions[at + 1 :]]
        world = new_world()
        found = wrong_after(world, fewer)
        if found:
            actions, wrong, log = fewer, found, world.log
        else:
            at += 1
    return actions, wrong, log


def check_history(new_world: Callable[[], World], seed: int, length: int) -> None:
    actions = draw(seed, length)
    world = new_world()
    wrong = wrong_after(world, actions)
    if wrong:
        log = world.log
        actions, again, shorter = shortest(new_world, actions)
        lines = "\n".join(
            [
                f"seed {seed}",
                f'--play "{"; ".join(map(" ".join, actions))}"',
                *(shorter or log),
                "---",
                *(again if shorter else wrong),
            ]
        )
        pytest.fail(lines, pytrace=False)


@pytest.mark.services
@pytest.mark.parametrize("seed", range(1, 3))
def test_operators_a_few_histories_lose_and_double_nothing(new_world: Callable[[], World], seed: int) -> None:
    check_history(new_world, seed, 6)


FOUND = (
    "send 3 1; run; send 3 2; take_over commit 0",
    "no_topic; send 3 1; beside_edited commit:quarantine 0",
    "send 3 1; edit; run; edit; send 2 2; beside_edited commit:out 0; redrive",
    "send 3 1; run; save quarantine; send 2 1; run; put_back quarantine; catch_up; redrive",
    "no_topic; send 3 1; edit; run; save quarantine; edit; replay delta; put_back quarantine; run",
    "send 3 0; run; rename_sink out; send 2 0; run; rename_sink out; run",
    "send 3 1; run; edit; redrive commit:redrives; rename_sink out; redrive",
    # The redrive wrote into the topic under a name that the sink has no more.
    "send 3 1; run; edit; rename_sink out; redrive commit:delta; lose_checkpoint",
    "send 3 1; add_sink; run; redrive commit:delta; remove_sink",
    "send 3 1; run; redrive commit:pg; edit; redrive",
    "send 3 1; run; redrive commit:redrives; edit; redrive",
    "send 3 1; run; save delta; replay delta rejects; put_back delta",
    "send 3 1; run; rename_sink out; catch_up",
    "send 3 1; run; rename_sink out; resume",
    "send 3 1; run; edit; redrive commit:pg; replay delta publish:delta; other 1",
    "send 3 1; run; edit; replay delta publish:delta; redrive; redrive",
    "no_topic; run; save quarantine; send 0 2; kill commit:iceberg 0; put_back quarantine",
    "no_topic; run; save quarantine; send 0 2; kill commit:delta 0; put_back quarantine",
    "no_topic; send 3 1; run; save quarantine; send 2 2; kill commit:iceberg 0; edit; put_back quarantine; run",
    "no_topic; send 3 1; run; save quarantine; send 2 2; run; put_back quarantine; lose_checkpoint; run",
)
"""Histories that have lost or doubled something, or led into a dead end."""
IN_THE_DEFAULT_RUN = "send 3 1; run; edit; rename_sink out; redrive commit:delta; lose_checkpoint"
_LONG = (pytest.mark.crash, pytest.mark.long)


@pytest.mark.services
@pytest.mark.parametrize(
    "history", [pytest.param(one, marks=() if one == IN_THE_DEFAULT_RUN else _LONG) for one in FOUND]
)
def test_operators_histories_that_were_found_once_lose_and_double_nothing(
    new_world: Callable[[], World], history: str
) -> None:
    world = new_world()
    wrong = wrong_after(world, played(history))
    assert not wrong, "\n".join([*world.log, "---", *wrong])


@pytest.mark.crash
@pytest.mark.long
def test_operators_many_histories_lose_and_double_nothing(
    new_world: Callable[[], World], request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--play"):
        world = new_world()
        wrong = wrong_after(world, played(request.config.getoption("--play")))
        print(*world.log, sep="\n")
        assert not wrong, "\n".join([*world.log, "---", *wrong])
        return
    first, count = request.config.getoption("--seed"), request.config.getoption("--histories")
    for seed in range(first, first + count):
        check_history(new_world, seed, 9)
