"""Records that stay out of some sinks, and those that stay out of all that are written."""

from __future__ import annotations

from penstock.engine.refused import EVERYWHERE, Excluded
from penstock.model import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_all_before_steps_leaves_out_everywhere_what_all_of_these_sinks_leave_out() -> None:
    found = Excluded({"a": {P0: frozenset({1, 2}), P1: frozenset({5})}, "b": {P0: frozenset({2, 3})}})
    both = found.all_before_steps(["a", "b"])
    assert both.offsets[EVERYWHERE] == {P0: frozenset({2})}
    assert both.before_steps == both.offsets
    alone = found.all_before_steps(["a"])
    assert alone.offsets[EVERYWHERE] == {P0: frozenset({1, 2}), P1: frozenset({5})}
    assert EVERYWHERE not in found.all_before_steps(["a", "c"]).offsets
