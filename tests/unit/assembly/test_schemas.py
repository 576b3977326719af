"""A registry that is away is asked seldom, so that batches whose schemas are known go on; and again when it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.assembly import schemas
from penstock.assembly.schemas import SchemaUpdates
from penstock.errors import TransientError
from penstock.registry import RegisteredSchema

PLACE = ("decode",)
FIRST, SECOND = (RegisteredSchema(number, "JSON", "{}") for number in (1, 2))


@dataclass
class Asked:
    """A decoder whose registry needs 12 seconds to be given up."""

    clock: list[float]
    answer: RegisteredSchema | None = None
    times: list[float] = field(default_factory=list)

    def ask(self, known: RegisteredSchema) -> RegisteredSchema:
        self.times.append(self.clock[0])
        if self.answer is None:
            self.clock[0] += 12
            raise TransientError("REGISTRY_UNREACHABLE", "no answer")
        return self.answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(schemas.time, "monotonic", lambda: now[0])
    return now


def known(_: object) -> RegisteredSchema:
    return FIRST


def following(decoder: Any) -> Callable[[], dict[Any, RegisteredSchema] | None]:
    made = SchemaUpdates({PLACE: decoder})
    return lambda: made.newest(known)


def test_registry_away_is_asked_for_a_third_of_the_time(clock: list[float]) -> None:
    decoder = Asked(clock)
    newest = following(decoder)
    while clock[0] < 1100:
        assert newest() is None
        clock[0] += 1
    assert decoder.times == [1000, 1036, 1072]


def test_registry_back_is_found_by_the_next_question(clock: list[float]) -> None:
    decoder = Asked(clock)
    made = SchemaUpdates({PLACE: decoder})
    assert made.newest(known) is None
    assert made.away is not None
    decoder.answer = SECOND
    assert made.newest(known) is None, "not asked yet"
    clock[0] += 24
    assert made.newest(known) == {PLACE: SECOND}
    assert made.away is None


def test_registry_away_is_asked_at_once_for_a_batch_that_waits_for_it(clock: list[float]) -> None:
    decoder = Asked(clock)
    made = SchemaUpdates({PLACE: decoder})
    made.newest(known)
    decoder.answer = SECOND
    made.ask_at_once()
    assert made.newest(known) == {PLACE: SECOND}


def test_registry_there_is_asked_for_every_batch(clock: list[float]) -> None:
    decoder = Asked(clock, FIRST)
    newest = following(decoder)
    assert [newest(), newest()] == [{PLACE: FIRST}] * 2
    assert len(decoder.times) == 2
