"""Work that is repeated in the background."""

from __future__ import annotations

import queue
import threading

from penstock.background import Repeating

LONG = 3_600.0


def alive(name: str) -> bool:
    return name in {one.name for one in threading.enumerate()}


def test_work_is_repeated_after_as_long_as_it_says_until_it_says_none() -> None:
    waits, called = iter([0.0, 0.0, None]), queue.Queue[float | None]()

    def work() -> float | None:
        wait = next(waits)
        called.put(wait)
        return wait

    repeated = Repeating("three", work, 0)
    assert [called.get(timeout=30) for _ in range(3)] == [0.0, 0.0, None]
    repeated.close(30)
    assert called.empty() and not alive("penstock-three")


def test_work_that_is_not_due_is_not_waited_for_at_the_end() -> None:
    called: list[int] = []
    repeated = Repeating("seldom", lambda: called.append(1), LONG)
    repeated.close(30)
    assert called == [] and not alive("penstock-seldom")


def test_work_is_done_once_more_at_the_end_where_that_is_wanted() -> None:
    called: list[int] = []
    Repeating("last", lambda: called.append(1), LONG, once_more=True).close(30)
    assert called == [1]


def test_work_that_hangs_holds_nothing_up_for_longer_than_asked() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait(30)

    repeated = Repeating("hanging", work, 0)
    assert begun.wait(30)
    repeated.close(0)
    assert alive("penstock-hanging")
    over.set()
