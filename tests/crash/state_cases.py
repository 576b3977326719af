"""Steps with state for a crash run: the pipeline, the events, and by plain arithmetic what every target has to hold.

Event time goes on with each event, in a disorder that the watermark's delay covers many times over: nothing is late,
however the events are cut into batches. Some events are broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import tests.numbering
from tests.conftest import COLUMNS

START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(minutes=30)
_CUSTOMERS = 40
_SIZE = 600
"""The seconds of a window."""
_WATERMARK = {"column": "event_time", "delay": "30 minutes", "late": "quarantine"}
_PAYMENTS = "paid_order BIGINT NOT NULL, paid BIGINT, paid_at TIMESTAMP"
_LAST = 30 * 86_400
"""The second of the event that ends all the time before it."""
Source = dict[str, Any]
Rows = set[tuple[Any, ...]]


class StateCase(Protocol):
    """One kind of step with state."""

    name: str
    sides: tuple[str, ...]
    """The topics."""
    columns: list[str]
    """What rows are compared by: numbers and text."""

    def pipeline(self, sources: dict[str, Source], folder: Path) -> dict[str, Any]: ...
    def sent(self, side: str, number: int) -> Any:
        """What is sent to a topic for an event; None where that is nothing."""

    def last(self, side: str) -> Any:
        """What is sent in the end, when all else is read."""

    def expected(self, numbers: Iterable[int], ended: bool) -> Rows: ...


def broken(number: int) -> bool:
    return number % 500 == 0


def customer(number: int) -> str:
    """All events of a customer are in one partition."""
    return f"c{number % _CUSTOMERS}"


def second(number: int) -> int:
    return 5 * (number + 60 - number * 7919 % 60)


def at(seconds: int) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def order(number: int, order_id: int | None = None) -> Any:
    """The event as it is sent; it may repeat an order."""
    if broken(number):
        return b"{broken"
    same = number if order_id is None else order_id
    return {
        "order_id": same,
        "customer_id": customer(same),
        "amount": float(same % 100),
        "event_time": at(second(number)),
    }


LAST_ORDER = {"order_id": -2, "customer_id": "last", "amount": 0.0, "event_time": at(_LAST)}


@dataclass(frozen=True)
class _OneTopic:
    name: str
    columns: list[str]
    steps: list[dict[str, Any]]
    sides: tuple[str, ...] = ("orders",)

    def pipeline(self, sources: dict[str, Source], folder: Path) -> dict[str, Any]:
        (folder / "steps.py").write_text(Path(tests.numbering.__file__).read_text())
        [source] = sources.values()
        steps = [{"watermark": _WATERMARK}, *self.steps]
        return {"source": source, "decode": {"format": "json", "schema": COLUMNS}, "transforms": steps}

    def sent(self, side: str, number: int) -> Any:
        return order(number)

    def last(self, side: str) -> Any:
        return LAST_ORDER


class _Windows(_OneTopic):
    def expected(self, numbers: Iterable[int], ended: bool) -> Rows:
        good = [n for n in numbers if not broken(n)]
        orders, totals = Counter[Any](), Counter[Any]()
        for n in good:
            key = (second(n) // _SIZE, customer(n))
            orders[key] += 1
            totals[key] += n % 100
        newest = _LAST if ended else max(map(second, good))
        passed = newest - DELAY.total_seconds()
        first = int(START.timestamp())
        return {
            (first + window * _SIZE, who, orders[window, who], float(totals[window, who]))
            for window, who in orders
            if (window + 1) * _SIZE <= passed
        }


class _Dedupe(_OneTopic):
    def sent(self, side: str, number: int) -> Any:
        return order(number, _repeated(number))

    def expected(self, numbers: Iterable[int], ended: bool) -> Rows:
        found: Rows = {(_repeated(n), customer(_repeated(n))) for n in numbers if not broken(n)}
        return found | ({(-2, "last")} if ended else set())


def _repeated(number: int) -> int:
    """The order of an event: every third one repeats one of another partition, some minutes before or after it."""
    return number - 37 if number % 3 == 2 and number >= 37 else number


class _Numbering(_OneTopic):
    def expected(self, numbers: Iterable[int], ended: bool) -> Rows:
        counts = Counter[str]()
        found: Rows = set()
        for n in numbers:
            if not broken(n):
                counts[customer(n)] += 1
                found.add((customer(n), counts[customer(n)], n))
        if ended:
            found |= {("last", 1, -2), *((who, count, -1) for who, count in counts.items())}
        return found


@dataclass(frozen=True)
class _Join:
    name: str = "join"
    sides: tuple[str, ...] = ("orders", "payments")
    columns: list[str] = field(default_factory=lambda: ["order_id", "customer_id", "settled"])

    def pipeline(self, sources: dict[str, Source], folder: Path) -> dict[str, Any]:
        schemas = {"orders": (COLUMNS, "event_time"), "payments": (_PAYMENTS, "paid_at")}
        sides = {
            name: {
                **sources[name],
                "decode": {"format": "json", "schema": schema},
                "transforms": [{"watermark": {**_WATERMARK, "column": time}}],
            }
            for name, (schema, time) in schemas.items()
        }
        on = {"order_id": "paid_order"}
        join = {"left": "orders", "right": "payments", "on": on, "within": "10 minutes", "type": "left"}
        return {"sources": sides, "transforms": [{"join": join}, {"derive": {"settled": "coalesce(paid, -1)"}}]}

    def sent(self, side: str, number: int) -> Any:
        if side == "orders":
            return order(number)
        if number % 3 == 0:
            return None
        return {"paid_order": number, "paid": number * 10, "paid_at": at(second(number) + number % 50)}

    def last(self, side: str) -> Any:
        return LAST_ORDER if side == "orders" else {"paid_order": -3, "paid": 0, "paid_at": at(_LAST)}

    def expected(self, numbers: Iterable[int], ended: bool) -> Rows:
        assert ended, "only the end tells which orders find no payment"
        return {(n, customer(n), n * 10 if n % 3 else -1) for n in numbers if not broken(n)}


_WINDOW = {"size": "10 minutes", "by": ["customer_id"], "aggregates": {"orders": "count(*)", "total": "sum(amount)"}}
WINDOWS = _Windows(
    "window",
    ["began", "customer_id", "orders", "total"],
    [{"window": _WINDOW}, {"derive": {"began": "unix_seconds(window_start)"}}],
)
DEDUPE = _Dedupe("dedupe", ["order_id", "customer_id"], [{"dedupe": {"keys": ["order_id"], "within": "40 minutes"}}])
NUMBERING = _Numbering("stateful", ["customer_id", "number", "order_id"], [{"stateful": tests.numbering.STEP}])
JOIN = _Join()
CASES: tuple[StateCase, ...] = (WINDOWS, DEDUPE, JOIN, NUMBERING)
