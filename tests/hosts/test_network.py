"""The switch between hosts does what it is told: lose packets on one way or both, hold them back, and heal."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.hosts.network import HOME, Network, network, why_not

pytestmark = [
    pytest.mark.services,
    pytest.mark.crash,
    pytest.mark.long,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
FAR = "far"
_PORT = 9999
# Answers with how many packets it has had, so that a lost answer is told from a lost question.
_ECHO = f"""
import socket, sys
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind((sys.argv[1], {_PORT}))
print("ready", flush=True)
count = 0
while True:
    _, who = line.recvfrom(100)
    count += 1
    line.sendto(str(count).encode(), who)
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network([FAR]) as made:
        yield made


@contextmanager
def counting(net: Network) -> Iterator[socket.socket]:
    """A line from here to a host that counts what comes."""
    command = [*net.within(FAR), sys.executable, "-c", _ECHO, net.address[FAR]]
    far = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert far.stdout is not None and far.stdout.readline() == "ready\n"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(0.5)
        line.connect((net.address[FAR], _PORT))
        try:
            yield line
        finally:
            net.heal()
            far.kill()
            far.wait(10)


def asked(line: socket.socket) -> int | None:
    line.send(b"?")
    try:
        return int(line.recv(100))
    except TimeoutError:
        return None


def test_hosts_reach_each_other_until_cut_and_again_when_healed(net: Network) -> None:
    with counting(net) as line:
        assert asked(line) == 1
        net.cut([HOME], [FAR])
        assert asked(line) is None
        net.heal()
        assert asked(line) == 2, "what was lost on both ways never came"


def test_hosts_cut_one_way_lose_that_way_only(net: Network) -> None:
    with counting(net) as line:
        net.cut([FAR], [HOME], one_way=True)
        assert asked(line) is None
        net.heal()
        assert asked(line) == 2, "the question came, and its answer was lost"


def test_hosts_with_a_delay_are_late_and_lose_nothing(net: Network) -> None:
    with counting(net) as line:
        line.settimeout(5)
        net.delay([HOME], [FAR], 0.3)
        began = time.monotonic()
        assert asked(line) == 1
        assert time.monotonic() - began >= 0.6
