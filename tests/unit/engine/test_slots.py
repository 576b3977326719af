"""Slots cover the ranges exactly, split large partitions and join small ones."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.work import pin_slots, pinned_slot, plan_slots
from penstock.model import OffsetRange


def test_slots_two_partitions_eight_cores_use_all() -> None:
    ranges = [OffsetRange("t", 0, 0, 400_000), OffsetRange("t", 1, 100, 400_100)]
    slots = plan_slots(ranges, 8)
    assert len(slots) == 8
    assert {sum(map(len, slot)) for slot in slots} == {100_000}


def test_slots_two_hundred_partitions_do_not_cost_two_hundred_tasks() -> None:
    assert len(plan_slots([OffsetRange("t", p, 0, 1_000) for p in range(200)], 8)) == 8


def test_slots_few_rows_make_one_slot() -> None:
    assert len(plan_slots([OffsetRange("t", p, 0, 10) for p in range(20)], 8)) == 1


def test_slots_nothing_to_read_makes_none() -> None:
    assert plan_slots([OffsetRange("t", 0, 5, 5)], 8) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2_000)), max_size=30),
    st.integers(1, 16),
    st.integers(1, 500),
)
def test_slots_any_ranges_are_covered_exactly_and_evenly(
    spans: list[tuple[int, int]], cores: int, smallest: int
) -> None:
    ranges = [OffsetRange("t", p, start, start + size) for p, (start, size) in enumerate(spans)]
    slots = plan_slots(ranges, cores, smallest)
    wanted = [(r.partition, o) for r in ranges for o in range(r.start, r.end)]
    assert [(r.partition, o) for slot in slots for r in slot for o in range(r.start, r.end)] == wanted
    assert len(slots) <= cores
    sizes = [sum(map(len, slot)) for slot in slots]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert all(len(r) for slot in slots for r in slot)


def test_pin_slots_every_batch_has_all_slots_and_no_partition_is_split() -> None:
    slots = pin_slots([OffsetRange("t", p, 0, 1_000_000) for p in range(3)], 2)
    assert [len(slot) for slot in slots] in ([1, 2], [2, 1])
    assert pin_slots([], 3) == [(), (), ()]
    assert pin_slots([OffsetRange("t", 0, 5, 5)], 1) == [()]


def test_pinned_slot_of_a_partition_does_not_depend_on_its_batch() -> None:
    alone = pin_slots([OffsetRange("t", 7, 0, 1)], 4)
    among = pin_slots([OffsetRange("t", p, 10, 20) for p in range(20)], 4)
    at = next(n for n, slot in enumerate(alone) if slot)
    assert any(r.partition == 7 for r in among[at])
    assert pinned_slot("t", 7, 4) == at
    assert [len(slot) for slot in among] == [5, 5, 5, 5]
