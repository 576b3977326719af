"""The demo's events: orders with a known number of faults, each at a known place.

Every partition gets the same number of messages, so that Spark cuts the batches at the same position in
each, and a pair of duplicates never straddles a cut: the arithmetic of the summary can be exact.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

PARTITIONS = 8
BATCH_OFFSETS = 60_000
_STARTED = datetime(2026, 1, 1, tzinfo=UTC)
_FAULT_EVERY, _NEGATIVE_EVERY, _TWICE_EVERY = 200, 400, 100

_FAULTS: tuple[tuple[str, bytes | None], ...] = (
    ("MALFORMED_JSON", b'{"order_id": 17, "customer_id": "c-17", "amount": 12.'),
    (
        "WRONG_TYPE",
        b'{"order_id": 18, "customer_id": "c-18", "amount": "twelve", "event_time": "2026-01-01T00:00:00Z"}',
    ),
    ("MISSING_FIELD", b'{"customer_id": "c-19", "amount": 3.5, "event_time": "2026-01-01T00:00:00Z"}'),
    ("NOT_AN_OBJECT", b"[1, 2, 3]"),
    ("INVALID_UTF8", b'{"order_id": 20, "customer_id": "\xff\xfe", "amount": 1.0}'),
    ("TOMBSTONE", None),
    ("TRAILING_DATA", b'{"order_id": 21, "amount": 1.0}{"order_id": 22, "amount": 2.0}'),
    ("EMPTY_MESSAGE", b""),
)


@dataclass(frozen=True)
class Message:
    """One message and where it goes."""

    partition: int
    key: bytes
    value: bytes | None


@dataclass
class Expected:
    """What must come out, counted while the messages are made."""

    sent: int = 0
    duplicates: int = 0
    filtered: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)

    @property
    def landed(self) -> int:
        """Rows that must be in the table."""
        return self.sent - self.duplicates - self.filtered - sum(self.quarantined.values())


def demo_messages(count: int, expected: Expected, first: int = 0) -> Iterator[Message]:
    """`count` messages from number `first` on, round robin over the partitions; `expected` is filled in on the way."""
    twice: dict[int, tuple[int, bytes]] = {}
    for number in range(first, first + count):
        position, partition = divmod(number, PARTITIONS)
        expected.sent += 1
        if number in twice:
            order, value = twice.pop(number)
            expected.duplicates += 1
            yield Message(partition, f"o-{order}".encode(), value)
        elif position % _FAULT_EVERY == 77:
            code, fault = _FAULTS[(position // _FAULT_EVERY + partition) % len(_FAULTS)]
            expected.quarantined[code] += 1
            yield Message(partition, f"bad-{number}".encode(), fault)
        else:
            negative = position % _NEGATIVE_EVERY == 33
            expected.filtered += negative
            value = _order(number, negative)
            # The copy lands two rounds later and in another partition, well inside the same batch.
            if position % _TWICE_EVERY == 50 and number + 2 * PARTITIONS + 3 < first + count:
                twice[number + 2 * PARTITIONS + 3] = (number, value)
            yield Message(partition, f"o-{number}".encode(), value)


def _order(number: int, negative: bool) -> bytes:
    amount = round((number * 37 % 50_000) / 100 + 0.5, 2)
    return json.dumps(
        {
            "order_id": number,
            "customer_id": f"c-{number % 5_000:05d}",
            "amount": -amount if negative else amount,
            "event_time": (_STARTED + timedelta(milliseconds=number * 860)).isoformat().replace("+00:00", "Z"),
            "status": ("new", "paid", "sent", "done")[number % 4],
        }
    ).encode()
