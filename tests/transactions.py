"""What brokers tell of transactions, and the client has no calls for: requests of Kafka's protocol."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from datetime import timedelta

_DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 65, 66
_LOADING = 14
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def is_ending_some(broker: str) -> bool:
    """Whether this broker is writing the end of a transaction that was committed or aborted."""
    try:
        # Of every producer.
        answer = _ask(broker, _LIST_TRANSACTIONS, _texts(_ENDING) + b"\1")
    except OSError:  # it is away, and another has its transactions
        return False
    error, unknown, found = struct.unpack(">hBB", answer[:4])
    assert unknown == 1, "the broker does not know these states"
    return bool(error == _LOADING or found > 1)


def timeout_of(broker: str, transactional_id: str) -> timedelta:
    """After what time this broker, which coordinates it, aborts the transaction."""
    answer = _ask(broker, _DESCRIBE_TRANSACTIONS, _texts([transactional_id]))
    count, error, length = struct.unpack(">BhB", answer[:4])
    assert (count, error, length) == (2, 0, len(transactional_id) + 1), answer
    behind = 4 + len(transactional_id)
    [milliseconds] = struct.unpack_from(">i", answer, behind + answer[behind])
    return timedelta(milliseconds=milliseconds)


def _ask(broker: str, request: int, body: bytes) -> bytes:
    """The answer to a request of version 0, behind the time that the broker asks us to wait."""
    host, _, port = broker.rpartition(":")
    message = struct.pack(">hhihb", request, 0, 1, -1, 0) + body + b"\0"
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rwb") as stream:
        stream.write(struct.pack(">i", len(message)) + message)
        stream.flush()
        answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    return answer[struct.calcsize(">ibi") :]


def _texts(texts: Sequence[str]) -> bytes:
    """A compact array of compact strings: each begins with its length, plus one."""
    encoded = [text.encode() for text in texts]
    assert all(len(text) < 127 for text in encoded), "a longer one has more than one byte for its length"
    return bytes([len(encoded) + 1]) + b"".join(bytes([len(text) + 1]) + text for text in encoded)
