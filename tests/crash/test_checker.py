"""The checker can fail: planted losses and duplicates are found."""

from tests.crash.checker import check, ranges_in_order

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


def test_ranges_in_order_gap_and_repeat_are_found() -> None:
    first, second = (0, {("t", 0): (0, 5)}), (1, {("t", 0): (5, 9)})
    assert ranges_in_order([first, second])
    assert not ranges_in_order([first, (1, {("t", 0): (6, 9)})])
    assert not ranges_in_order([first, first, second])
    assert not ranges_in_order([second])
