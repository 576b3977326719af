"""How many slots a batch gets from the cores that are there, and how long a run waits for the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import MissingError
from penstock.spark.executors import Executors


def session(master: str, cores: Sequence[int | Exception], **conf: str) -> Any:
    """A session that has so many cores, one number for each time it is asked, or is gone; the last one stays."""

    def asked(profile: object) -> int:
        found = cores.pop(0) if isinstance(cores, list) and len(cores) > 1 else cores[0]
        if isinstance(found, Exception):
            raise found
        return found

    settings = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
    scala = SimpleNamespace(
        maxNumConcurrentTasks=asked,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    context = SimpleNamespace(
        master=master,
        defaultParallelism=7,
        _conf=SimpleNamespace(get=settings.get),
        _jsc=SimpleNamespace(sc=lambda: scala),
    )
    return SimpleNamespace(sparkContext=context)


CLUSTER = "spark://127.0.0.1:7077"
DYNAMIC = {"dynamicAllocation_enabled": "true"}


def test_slots_without_a_cluster_are_the_cores_of_this_machine() -> None:
    assert Executors(session("local[7]", [0])).slots() == 7


def test_slots_follow_the_executors_from_batch_to_batch() -> None:
    executors = Executors(session(CLUSTER, [2, 5, 0, 3]))
    assert [executors.slots() for _ in range(4)] == [2, 5, 1, 3]


def test_slots_that_the_settings_fix_stay() -> None:
    assert Executors(session(CLUSTER, [2], default_parallelism="7")).slots() == 7


@pytest.mark.parametrize(
    ("cores", "conf", "slots"),
    [
        (0, {}, 2),
        (4, {}, 8),
        (4, {"dynamicAllocation_maxExecutors": "6"}, 6),
        (4, {"dynamicAllocation_maxExecutors": "6", "executor_cores": "4"}, 8),
        (0, {"dynamicAllocation_maxExecutors": "6", "executor_cores": "4"}, 4),
    ],
)
def test_slots_with_dynamic_allocation_let_the_cluster_grow_up_to_its_most(
    cores: int, conf: dict[str, str], slots: int
) -> None:
    assert Executors(session(CLUSTER, [cores], **DYNAMIC, **conf)).slots() == slots


def test_wait_for_as_many_as_were_asked_for() -> None:
    cores = [0, 1, 1, 3, 4, 9]
    Executors(session(CLUSTER, cores, cores_max="4")).wait()
    assert cores == [9]


def test_wait_in_vain_says_what_was_asked_for() -> None:
    with pytest.raises(MissingError) as raised:
        Executors(session(CLUSTER, [0], executor_memory="64g")).wait(patience=0.1)
    assert raised.value.code == "EXECUTORS_MISSING"
    assert "64g" in raised.value.context["requested"]


def test_wait_without_a_cluster_is_none() -> None:
    Executors(session("local[*]", [0])).wait()


@pytest.mark.parametrize("gone", [AttributeError("the context is stopped"), ConnectionRefusedError(111, "refused")])
def test_wait_for_an_application_that_the_cluster_ended_says_so(gone: Exception) -> None:
    with pytest.raises(MissingError, match="the cluster has ended the application") as raised:
        Executors(session(CLUSTER, [0, gone])).wait()
    assert raised.value.code == "EXECUTORS_MISSING"
