"""A batch without progress is found; a long one that makes some is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.listener import Event, Notice, Stalled
from penstock.errors import TransientError
from penstock.spark.executors import Work
from penstock.supervision.watchdog import HANDOVER_SECONDS, LOOK_SECONDS, WARN_SECONDS, Watchdog

HOUR = 3600.0


class Watched:
    """A watchdog whose time passes as told."""

    def __init__(self, stalled_after: float = HOUR) -> None:
        self.now, self.work, self.heard = 0.0, Work(0, False), list[Event]()
        self.dog = Watchdog(stalled_after, self.heard.append, lambda: self.work, lambda: self.now)

    def pass_time(
        self, seconds: float, *, in_hand: bool = True, is_open: bool = True, step: Callable[[], None] = lambda: None
    ) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_SECONDS
            step()
            self.dog.look(lambda: is_open, in_hand, "stage")

    @property
    def warnings(self) -> list[str | None]:
        return [event.text for event in self.heard if isinstance(event, Stalled)]


def test_batch_without_progress_is_warned_of_and_given_up_for_another_try() -> None:
    watched = Watched()
    watched.pass_time(WARN_SECONDS + 2 * LOOK_SECONDS)
    [text] = watched.warnings
    assert text is not None and "no progress" in text and "phase stage" in text
    assert [event for event in watched.heard if isinstance(event, Notice)] == [Notice(text)]
    with pytest.raises(TransientError) as raised:
        watched.pass_time(HOUR)
    assert (raised.value.code, raised.value.exit_code) == ("BATCH_STALLED", 75)
    assert "--stalled-after" in str(raised.value.hint)


@pytest.mark.parametrize("sign", ["phase", "task", "processor"])
def test_batch_of_days_that_makes_progress_is_left_alone(sign: str) -> None:
    watched = Watched()

    def step() -> None:
        # A sign every 9 minutes, and nothing between.
        due = watched.now % 540 < LOOK_SECONDS
        if due and sign == "phase":
            watched.dog.progressed()
        finished = watched.work.finished_tasks + (due and sign == "task")
        watched.work = Work(finished, due and sign == "processor")

    watched.pass_time(48 * HOUR, step=step)
    assert watched.heard == []


def test_batch_that_goes_on_after_a_warning_is_told_so() -> None:
    watched = Watched()
    watched.pass_time(WARN_SECONDS + 2 * LOOK_SECONDS)
    watched.dog.progressed()
    watched.pass_time(LOOK_SECONDS)
    assert len(watched.warnings) == 2 and watched.warnings[-1] is None
    watched.pass_time(HOUR - LOOK_SECONDS)


def test_batch_that_spark_does_not_hand_over_is_lost_soon() -> None:
    watched = Watched()
    # Other work in the process is none for a batch that never came.
    watched.work = Work(0, True)
    with pytest.raises(TransientError) as raised:
        watched.pass_time(HANDOVER_SECONDS + 2 * LOOK_SECONDS, in_hand=False)
    assert "waiting in Spark" in raised.value.summary
    assert watched.now <= HANDOVER_SECONDS + 2 * LOOK_SECONDS


def test_pipeline_that_waits_for_records_is_never_stalled() -> None:
    watched = Watched()
    watched.pass_time(48 * HOUR, in_hand=False, is_open=False)
    assert watched.heard == []


def test_zero_only_warns_of_a_batch_in_hand() -> None:
    watched = Watched(stalled_after=0)
    watched.pass_time(48 * HOUR)
    assert len(watched.warnings) == 1
