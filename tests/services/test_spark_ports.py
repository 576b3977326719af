"""Spark's own port answers no process that does not know the application's secret."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.services

RPC_REQUEST, RPC_RESPONSE, RPC_FAILURE = 3, 4, 5
SECONDS = 10.0


def existence_request(spark: Any, endpoint: str) -> bytes:
    """A request as Spark's own client sends it: whether there is an endpoint of this name."""
    jvm = spark.sparkContext._jvm
    content = getattr(jvm.org.apache.spark.rpc.netty, "RpcEndpointVerifier$CheckExistence")(endpoint)
    out = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(out).writeObject(content)
    address = b"\1" + utf("127.0.0.1") + struct.pack(">i", 1)
    body = b"\0" + address + utf("endpoint-verifier") + bytes(out.toByteArray())
    frame = struct.pack(">bqi", RPC_REQUEST, 1, len(body)) + body
    return struct.pack(">q", len(frame) + 8) + frame


def utf(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def answer(port: int, request: bytes) -> int | None:
    """The kind of the answer, or none where the connection is closed without one."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as line:
        line.sendall(request)
        head = b""
        while len(head) < 9 and (more := line.recv(9 - len(head))):
            head += more
    return head[8] if len(head) == 9 else None


@pytest.fixture
def open_port(spark: Any) -> Iterator[int]:
    """A port of the same Spark that asks for no secret."""
    org = spark.sparkContext._jvm.org.apache.spark
    conf = spark.sparkContext._jsc.sc().getConf().clone().set("spark.authenticate", "false")
    defaults = [getattr(org.SecurityManager, f"$lessinit$greater$default${number}")() for number in (2, 3)]
    server = org.rpc.RpcEnv.create("open", "127.0.0.1", 0, conf, org.SecurityManager(conf, *defaults), False)
    yield server.address().port()
    server.shutdown()


def test_port_of_the_driver_answers_only_who_knows_the_secret(spark: Any, open_port: int) -> None:
    request = existence_request(spark, "endpoint-verifier")
    assert answer(open_port, request) == RPC_RESPONSE
    assert answer(int(spark.conf.get("spark.driver.port")), request) == RPC_FAILURE
