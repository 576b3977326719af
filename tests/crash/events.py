"""The events of a crash run, and by plain arithmetic what each kind of target has to hold in the end.

Some are broken and some lack the key of a merge. A customer's events are all in one partition, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.crash.checker import Coordinates

PARTITIONS = 4
_CUSTOMERS_A_PARTITION = 50


@dataclass(frozen=True)
class Events:
    """`rows` events, sent round robin over the partitions of `topic`."""

    topic: str
    rows: int

    def values(self) -> Iterator[Any]:
        """What is sent, in order."""
        for number in range(self.rows):
            if _broken(number):
                yield b"{broken"
            else:
                yield {
                    "order_id": number,
                    "customer_id": _customer(number),
                    "amount": -1.0 if _deletes(number) else float(number),
                    "event_time": "2026-01-01T00:00:00Z",
                }

    def good(self) -> set[Coordinates]:
        """Where the rows of a target that appends came from."""
        return {self._at(number) for number in range(self.rows) if not _broken(number)}

    def bad(self, merged: bool) -> set[Coordinates]:
        """Where the records of the quarantine came from; a target that merges refuses those without a key."""
        numbers = range(self.rows)
        return {self._at(n) for n in numbers if _broken(n) or (merged and _customer(n) is None)}

    def folded(self) -> set[tuple[str, int]]:
        """Customer and last order of each row in a target that merges: the events one after another into a dict."""
        latest: dict[str, int] = {}
        for number in range(self.rows):
            customer = _customer(number)
            if _broken(number) or customer is None:
                continue
            if _deletes(number):
                latest.pop(customer, None)
            else:
                latest[customer] = number
        return set(latest.items())

    def _at(self, number: int) -> Coordinates:
        return self.topic, number % PARTITIONS, number // PARTITIONS


def _broken(number: int) -> bool:
    return number % 1000 == 0


def _deletes(number: int) -> bool:
    return number % 37 == 0


def _customer(number: int) -> str | None:
    if number % 1000 == 500:
        return None
    partition, turn = number % PARTITIONS, number // PARTITIONS * 13 % _CUSTOMERS_A_PARTITION
    return f"c{partition + PARTITIONS * turn}"
