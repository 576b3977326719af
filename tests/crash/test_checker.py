"""The checker can fail: planted losses, duplicates and disorder are found. And the figures go where they belong."""

from __future__ import annotations

from pathlib import Path

from tests.crash.checker import check, compare, out_of_order, ranges_in_order
from tests.crash.events import Events
from tests.crash.figures import Figures, HostFigures, update

SENT = {("t", 0): 3, ("t", 1): 2}
WHOLE = [("t", 0, 0), ("t", 0, 1), ("t", 0, 2), ("t", 1, 0), ("t", 1, 1)]


def test_check_whole_table_is_clean() -> None:
    assert check(WHOLE, SENT).clean


def test_check_missing_row_is_lost() -> None:
    assert check(WHOLE[:-1], SENT).lost == [("t", 1, 1)]


def test_check_repeated_row_is_twice() -> None:
    assert check([*WHOLE, WHOLE[1]], SENT).twice == [("t", 0, 1)]


def test_check_row_never_sent_is_unknown() -> None:
    assert check([*WHOLE, ("t", 2, 0)], SENT).unknown == [("t", 2, 0)]


def test_compare_merged_row_of_an_older_event_is_lost_and_unknown() -> None:
    verdict = compare([("c1", 4), ("c2", 9)], {("c1", 5), ("c2", 9)})
    assert (verdict.lost, verdict.unknown, verdict.clean) == ([("c1", 5)], [("c1", 4)], False)


def test_out_of_order_keys_in_order_are_clean() -> None:
    unkeyed = [(None, 1, ("t", 0, 5)), (None, 0, ("t", 0, 4))]
    assert out_of_order([(b"a", 0, ("t", 0, 1)), (b"b", 1, ("t", 1, 0)), (b"a", 0, ("t", 0, 2)), *unkeyed]) == []


def test_out_of_order_a_step_back_a_repeat_and_another_partition_are_found() -> None:
    back = [(b"a", 0, ("t", 0, 2)), (b"a", 0, ("t", 0, 1))]
    again = [(b"b", 0, ("t", 0, 3)), (b"b", 0, ("t", 0, 3))]
    elsewhere = [(b"c", 0, ("t", 0, 4)), (b"c", 1, ("t", 0, 5))]
    assert out_of_order([*back, *again, *elsewhere]) == [b"a", b"b", b"c"]


def test_ranges_in_order_gap_and_repeat_are_found() -> None:
    first, second = (0, {("t", 0): (0, 5)}), (1, {("t", 0): (5, 9)})
    assert ranges_in_order([first, second])
    assert not ranges_in_order([first, (1, {("t", 0): (6, 9)})])
    assert not ranges_in_order([first, first, second])
    assert not ranges_in_order([second])


def test_events_say_what_each_target_must_hold() -> None:
    events = Events("t", 2_000)
    sent = list(events.values())
    assert len(events.good()) + len(events.bad(merged=False)) == len(sent) == 2_000
    assert len(events.bad(merged=True)) == 4
    last = dict(sorted(events.folded()))
    assert sent[last["c3"]]["customer_id"] == "c3"
    later = [event for event in sent[last["c3"] + 1 :] if isinstance(event, dict) and event["customer_id"] == "c3"]
    assert later == []
    assert len(last) < 200, "some customers are deleted by their last event"


def test_figures_are_put_into_the_page_and_those_of_other_runs_stay(tmp_path: Path) -> None:
    page, table = tmp_path / "guarantees.md", Figures.table
    old = "| `test_b[x]` | 1 | 10 | 0 | 0 | 1.0 s | 2 s |\n| `test_gone` | 1 | 10 | 0 | 0 | 1.0 s | 2 s |"
    page.write_text(f"before\n{table.begin}\n| run |\n|---|\n{old}\n{table.end}\nafter\n")
    of_hosts = HostFigures("b1 and driver, cut for 5 s", 2, 1.25, 40_000, 0, 0)
    figures = [Figures("test_a", 20, 100_000, 0, 0, 12.34, 300), of_hosts]
    update(page, table, figures, known=lambda run: run != "test_gone")
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert lines[4:6] == [
        "| `test_a` | 20 | 100,000 | 0 | 0 | 12.3 s | 300 s |",
        "| `test_b[x]` | 1 | 10 | 0 | 0 | 1.0 s | 2 s |",
    ]
    assert "test_gone" not in page.read_text()
    assert "b1 and driver" not in page.read_text()
