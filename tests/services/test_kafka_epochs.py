"""40,000 producers of one transactional id: its 16-bit epoch rolls over, and the sink does not notice.

A client takes tens of milliseconds to start, so most epochs are spent by the bare request that `init_transactions`
sends; the sink itself runs before, across and after the roll-over.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.committing import holds
from tests.contract.kit_kafka import committed
from tests.contract.rows import SCHEMA, land, prepared, token

from penstock.kafka import KafkaSettings
from penstock.sinks.kafka import KafkaSink

pytestmark = [pytest.mark.services, pytest.mark.long]

INITS = 40_000
LAST_EPOCH = 2**15 - 1
INIT_PRODUCER_ID = 22
CONCURRENT_TRANSACTIONS = 51


class Coordinator:
    """Sends `InitProducerId` of version 1 to the one broker, which coordinates every transactional id."""

    def __init__(self, connection: socket.socket, transactional_id: str) -> None:
        self._connection = connection
        name = transactional_id.encode()
        body = struct.pack(">h", len(name)) + name + struct.pack(">i", 60_000)
        header = struct.pack(">hhih", INIT_PRODUCER_ID, 1, 1, -1)
        self._request = struct.pack(">i", len(header + body)) + header + body

    def init(self) -> tuple[int, int]:
        """The producer id and epoch of a new producer."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self._connection.sendall(self._request)
            size = struct.unpack(">i", self._take(4))[0]
            error, producer, epoch = struct.unpack(">hqh", self._take(size)[8:20])
            if error == 0:
                return producer, epoch
            assert error == CONCURRENT_TRANSACTIONS, f"error {error}"
        raise TimeoutError("the coordinator gives no epoch")

    def _take(self, count: int) -> bytes:
        taken = b""
        while len(taken) < count:
            taken += self._connection.recv(count - len(taken))
        return taken


@contextmanager
def coordinator(brokers: str, transactional_id: str) -> Iterator[Coordinator]:
    host, port = brokers.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        yield Coordinator(connection, transactional_id)


def test_forty_thousand_inits_of_one_slot_roll_the_epoch_over_and_nothing_hangs(topics: Any) -> None:
    topic = topics.create(1, prefix="epochs")
    sink = prepared(KafkaSink(f"pipeline-{topic}", "out", KafkaSettings(topics.brokers), topic=topic, slots=1))
    assert isinstance(sink, KafkaSink)
    land(sink, token(0, 0, 1))
    batch, rolled, spent = 1, [], 0
    with coordinator(topics.brokers, sink._slot_id(0).transactional_id) as slot:
        first, epoch = before = slot.init()
        while spent < INITS:
            if epoch >= LAST_EPOCH - 30 or spent % 8000 == 0:
                land(sink, token(batch, batch, batch + 1))  # with a client of its own, as always
                batch += 1
            found = slot.init()
            spent += 1
            if found[0] != before[0]:
                rolled.append(found)
            else:
                assert found[1] > before[1]
            before, epoch = found, found[1]
    assert first not in {producer for producer, _ in rolled}
    assert len(rolled) == 1
    assert batch > 15
    sink.prepare(SCHEMA)
    assert holds(sink, token(batch - 1, batch - 1, batch))
    assert len(committed(topics.brokers, topic)) == batch
