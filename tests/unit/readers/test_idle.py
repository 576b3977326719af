from __future__ import annotations

from typing import Any

import pytest

from penstock.readers.kafka import IdleConsumers


class Consumer:
    def __init__(self) -> None:
        self.assigned, self.closed = True, False

    def unassign(self) -> None:
        self.assigned = False

    def close(self) -> None:
        self.closed = True


def test_consumers_of_the_same_settings_are_used_again() -> None:
    idle = IdleConsumers(2)
    with idle.lent("a", Consumer) as first:
        pass
    with idle.lent("a", Consumer) as again:
        assert again is first
    assert not first.assigned and not first.closed


def test_consumers_that_are_lent_are_nobody_elses() -> None:
    idle = IdleConsumers(2)
    with idle.lent("a", Consumer) as one, idle.lent("a", Consumer) as other:
        assert one is not other


def test_consumers_over_the_bound_are_closed_the_oldest_first() -> None:
    idle = IdleConsumers(2)
    lent: list[Any] = []
    for key in ("a", "b", "a", "c"):
        with idle.lent(key, Consumer) as consumer:
            lent.append(consumer)
    assert [consumer.closed for consumer in lent] == [False, True, False, False]
    assert len(idle) == 2


def test_consumers_are_kept_after_a_read_that_failed() -> None:
    idle = IdleConsumers(2)
    with pytest.raises(ValueError, match="broken"), idle.lent("a", Consumer):
        raise ValueError("broken")
    assert len(idle) == 1
    idle.close()
    assert len(idle) == 0
