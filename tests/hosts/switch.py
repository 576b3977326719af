"""A switch between the hosts: every packet passes it, and it may lose or hold back those from one host to another.

`python switch.py NAME=ADDRESS ...` makes a network device for each host, which whoever started it moves into the host's
namespace, says `ready`, and then takes commands, a line of JSON each: `{"from": A, "to": B, "drop": true}`, or with a
`delay` in seconds. It ends when its input does, and the devices with it.
"""

from __future__ import annotations

import fcntl
import heapq
import ipaddress
import itertools
import json
import os
import select
import struct
import sys
import time
from contextlib import suppress

_SET_INTERFACE = 0x400454CA
_TUN, _NO_PACKET_INFORMATION = 0x0001, 0x1000
_MOST_BYTES = 65_535
_A_TURN = 64
"""Packets of one host that are passed on before the others have their turn."""


class Waiting:
    """Packets that are held back, and the devices that they go to."""

    def __init__(self) -> None:
        self._held: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()

    def hold(self, seconds: float, target: int, packet: bytes) -> None:
        heapq.heappush(self._held, (time.monotonic() + seconds, next(self._numbers), target, packet))

    def let_go(self) -> None:
        """Those whose time has come."""
        while self._held and self._held[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(self._held)
            put(target, packet)

    def patience(self) -> float | None:
        """How long until the next one."""
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None


class Switch:
    """The devices by address, and what happens on the way from one to another."""

    def __init__(self, hosts: dict[str, str]) -> None:
        self._address = {name: ipaddress.IPv4Address(address).packed for name, address in hosts.items()}
        self._device = {self._address[name]: tun_device(name) for name in hosts}
        self._lost: set[tuple[bytes, bytes]] = set()
        self._held: dict[tuple[bytes, bytes], float] = {}
        self._waiting = Waiting()

    def tell(self, command: dict[str, object]) -> None:
        """Change what happens on one way."""
        way = (self._address[str(command["from"])], self._address[str(command["to"])])
        self._lost.discard(way)
        self._held.pop(way, None)
        if command.get("drop"):
            self._lost.add(way)
        if delay := float(str(command.get("delay") or 0)):
            self._held[way] = delay

    def run(self) -> None:
        """Pass packets on until the input ends."""
        poll = select.epoll()
        for device in self._device.values():
            poll.register(device, select.EPOLLIN)
        poll.register(sys.stdin.fileno(), select.EPOLLIN)
        unread = b""
        while True:
            for ready, _ in poll.poll(self._waiting.patience()):
                if ready != sys.stdin.fileno():
                    self._take(ready)
                    continue
                said = os.read(ready, 4096)
                if not said:
                    return
                *lines, unread = (unread + said).split(b"\n")
                for line in lines:
                    self.tell(json.loads(line))
                    print("done", flush=True)
            self._waiting.let_go()

    def _take(self, device: int) -> None:
        for _ in range(_A_TURN):
            try:
                packet = os.read(device, _MOST_BYTES)
            except BlockingIOError:
                return
            way = (packet[12:16], packet[16:20])
            target = self._device.get(way[1])
            if packet[0] >> 4 != 4 or target is None or way in self._lost:
                continue
            if way in self._held:
                self._waiting.hold(self._held[way], target, packet)
            else:
                put(target, packet)


def put(device: int, packet: bytes) -> None:
    """Send a packet out of a device."""
    # A device that is down or full loses packets, as any network does.
    with suppress(OSError):
        os.write(device, packet)


def tun_device(name: str) -> int:
    """A network device whose packets are read and written here; it goes when it is closed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH", name.encode(), _TUN | _NO_PACKET_INFORMATION))
    return device


if __name__ == "__main__":
    switch = Switch(dict(word.split("=") for word in sys.argv[1:]))
    print("ready", flush=True)
    with suppress(KeyboardInterrupt):
        switch.run()
