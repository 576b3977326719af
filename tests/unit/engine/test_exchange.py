"""Dedupe across slots: rows are exchanged by key, so that all rows of a key meet in one slot, whatever slot read them.

Compared with plain Python: the records one after another into a dict, the newest of each key stays.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.memory_runs import MemoryRun

STEPS = [
    {"where": "amount >= 0"},
    {"dedupe": {"keys": ["order_id"]}},
    {"expect": {"small": {"rule": "amount < 90"}}},
]
"""Something before the exchange, and something behind it that refuses rows."""


def random_values(chance: random.Random, count: int, keys: int) -> list[Any]:
    """Rows of a few keys, NULL among them, and records that cannot be decoded."""
    return [
        chance.choice([b"{broken", {"order_id": "no number"}])
        if chance.random() < 0.1
        else {"order_id": chance.choice([None, *range(keys)]), "amount": float(chance.randrange(-20, 100))}
        for _ in range(count)
    ]


def newest(partitions: Sequence[Sequence[Any]]) -> dict[Any, tuple[int, int]]:
    """The place of the newest row of each key: the greatest offset, of equal ones the last partition."""
    rows = ((place, value) for place, value in _rows_by_age(partitions) if not _broken(value) and value["amount"] >= 0)
    return {value["order_id"]: place for place, value in rows}


def _rows_by_age(partitions: Sequence[Sequence[Any]]) -> list[tuple[tuple[int, int], Any]]:
    places = sorted(((p, o) for p, values in enumerate(partitions) for o in range(len(values))), key=_age)
    return [(place, partitions[place[0]][place[1]]) for place in places]


def _newest_by(rows: dict[tuple[int, int], Any], column: str) -> list[tuple[int, int]]:
    """The place of the newest row of each value of a column."""
    return list({rows[place][column]: place for place in sorted(rows, key=_age)}.values())


def _age(place: tuple[int, int]) -> tuple[int, int]:
    return place[1], place[0]


def _broken(value: Any) -> bool:
    return isinstance(value, bytes) or value["order_id"] == "no number"


def check(run: MemoryRun) -> list[Any]:
    """Run it, and hold every target against plain Python."""
    metrics = run.run()
    kept = newest(run.partitions)
    large = {place for place in kept.values() if run.partitions[place[0]][place[1]]["amount"] >= 90}
    bad = {(p, o) for p, values in enumerate(run.partitions) for o, value in enumerate(values) if _broken(value)}
    for sink in run.sinks:
        assert run.places(sink) == dict.fromkeys(set(kept.values()) - large, 1), sink
    assert run.quarantined() == dict.fromkeys(bad | large, 1)
    [one] = metrics
    assert one.rows_in == sum(map(len, run.partitions))
    assert (one.rows_out, one.quarantined) == (len(kept) - len(large), len(bad | large))
    return metrics


@pytest.mark.parametrize("slots", range(2, 9))
def test_dedupe_of_keys_in_every_slot_keeps_the_newest_row_of_each(tmp_path: Path, slots: int) -> None:
    """Seven partitions: with eight slots one is empty, with fewer some have several partitions."""
    chance = random.Random(slots)
    partitions = [random_values(chance, chance.randrange(20, 60), 40) for _ in range(7)]
    [metrics] = check(MemoryRun(tmp_path, partitions, ("delta", "files"), transforms=STEPS, slots=slots))
    assert len(metrics.slot_rows) == min(slots, 7)
    assert len(metrics.slot_rows_out) > 1, "the keys are spread over the slots"


def test_dedupe_whose_rows_are_all_in_one_of_many_slots_keeps_the_newest_of_each(tmp_path: Path) -> None:
    chance = random.Random(1)
    partitions: list[list[Any]] = [[], [], random_values(chance, 200, 30), []]
    [metrics] = check(MemoryRun(tmp_path, partitions, ("delta",), transforms=STEPS, slots=8))
    assert len(metrics.slot_rows) == 1
    assert len(metrics.slot_rows_out) > 4


def test_dedupe_of_one_key_in_every_slot_keeps_one_row(tmp_path: Path) -> None:
    partitions = [[{"order_id": 7, "amount": 1.0}] * length for length in (3, 9, 9, 1, 8)]
    run = MemoryRun(tmp_path, partitions, ("delta",), transforms=STEPS, slots=5)
    check(run)
    assert run.places("delta") == {(2, 8): 1}


def test_dedupe_of_nothing_but_bad_records_quarantines_each_once(tmp_path: Path) -> None:
    run = MemoryRun(tmp_path, [[b"{broken"] * 5, [], [b"[]"] * 4], ("delta",), transforms=STEPS, slots=3)
    [metrics] = run.run()
    assert run.quarantined() == dict.fromkeys([*((0, o) for o in range(5)), *((2, o) for o in range(4))], 1)
    assert (run.rows("delta"), metrics.rows_out, metrics.quarantined) == ([], 0, 9)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8])
def test_dedupe_by_other_keys_behind_a_dedupe_keeps_the_newest_of_what_the_first_one_kept(
    tmp_path: Path, slots: int
) -> None:
    """Three in a row, each by another column: equal keys of the later ones come out of all slots of the one before."""
    chance = random.Random(2)
    rows = [
        [{"order_id": chance.randrange(60), "amount": float(chance.randrange(9))} for _ in range(50)] for _ in "abcd"
    ]
    partitions = [[b"{broken", *values] for values in rows]
    steps = [
        {"dedupe": {"keys": ["order_id"]}},
        {"expect": {"not_eight": {"rule": "amount <> 8"}}},
        {"dedupe": {"keys": ["amount"]}},
        {"derive": {"even": "CAST(amount AS BIGINT) % 2"}},
        {"dedupe": {"keys": ["even"]}},
    ]
    run = MemoryRun(tmp_path, partitions, ("delta",), transforms=steps, slots=slots)
    [metrics] = run.run()
    kept = {place: value for place, value in _rows_by_age(partitions) if not _broken(value)}
    kept = {place: kept[place] for place in _newest_by(kept, "order_id")}
    eights = {place for place, value in kept.items() if value["amount"] == 8}
    kept = {place: value for place, value in kept.items() if place not in eights}
    kept = {place: kept[place] for place in _newest_by(kept, "amount")}
    expected = {int(kept[place]["amount"]) % 2: place for place in sorted(kept, key=_age)}
    assert eights
    assert run.places("delta") == dict.fromkeys(expected.values(), 1)
    assert run.quarantined() == dict.fromkeys(eights | {(partition, 0) for partition in range(4)}, 1)
    assert (metrics.rows_in, metrics.rows_out, metrics.quarantined) == (204, 2, 4 + len(eights))


def test_dedupe_of_a_partition_that_is_split_into_slots_keeps_the_newest_of_each(tmp_path: Path) -> None:
    """As without a sink that pins the slots: a partition of 20,000 records is read in four of them."""
    chance = random.Random(3)
    [metrics] = check(
        MemoryRun(tmp_path, [random_values(chance, 20_000, 5_000)], ("delta",), transforms=STEPS, cores=4)
    )
    assert len(metrics.slot_rows) == 4
    assert len(metrics.slot_rows_out) == 4


@pytest.mark.parametrize("slots", [2, 5, 8])
def test_dedupe_is_within_a_batch_whatever_the_number_of_slots(tmp_path: Path, slots: int) -> None:
    chance = random.Random(slots)
    partitions = [random_values(chance, 60, 25) for _ in range(4)]
    run = MemoryRun(
        tmp_path, partitions, ("delta",), transforms=STEPS[:2], slots=slots, cuts=[[10, 60, 0, 25], [60, 60, 60, 60]]
    )
    run.run()
    expected = []
    for batch in run.batches():
        cut = [[None] * one.start + list(partitions[one.partition][one.start : one.end]) for one in batch]
        seen = [[{"order_id": None, "amount": -1.0} if value is None else value for value in values] for values in cut]
        expected += newest(seen).values()
    assert run.places("delta") == dict.fromkeys(expected, 1)
