"""Hosts on one machine: a network namespace and an address each, and a switch between them that can cut and delay."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import permutations
from pathlib import Path

_SWITCH = Path(__file__).with_name("switch.py")
HOME = "home"
_NET = "10.77.0"
_MTU = "60000"
"""Large, so that few packets pass the switch."""


def why_not() -> str | None:
    """Why there can be no hosts on this machine."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2"
    return None if Path("/dev/net/tun").exists() else "the switch needs /dev/net/tun"


class Network:
    """The hosts by their names, of at most ten letters; `HOME` is where the tests themselves are."""

    def __init__(self, names: Iterable[str]) -> None:
        self.address = {name: f"{_NET}.{number}" for number, name in enumerate((HOME, *names), start=1)}
        self._switch: subprocess.Popen[str] | None = None

    def up(self) -> None:
        """Make the hosts; each reaches every other."""
        self.down()
        devices = [f"{_device(name)}={address}" for name, address in self.address.items()]
        self._switch = subprocess.Popen(
            [sys.executable, str(_SWITCH), *devices], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._await("ready")
        for name, address in self.address.items():
            device = _device(name)
            there: tuple[str, ...] = ()
            if name != HOME:
                there = ("-n", _host(name))
                _ip("netns", "add", _host(name))
                _ip("link", "set", device, "netns", _host(name))
                _ip(*there, "link", "set", "lo", "up")
            _ip(*there, "address", "add", f"{address}/24", "dev", device)
            _ip(*there, "link", "set", device, "mtu", _MTU, "up")

    def down(self) -> None:
        """Remove the hosts; whoever started processes on them has ended these."""
        if self._switch is not None:
            assert self._switch.stdin is not None
            with suppress(OSError):
                self._switch.stdin.close()
            self._switch.wait(10)
            self._switch = None
        for name in self.address.keys() - {HOME}:
            subprocess.run(["ip", "netns", "delete", _host(name)], capture_output=True, check=False)

    def within(self, name: str) -> list[str]:
        """What a command begins with that runs on a host."""
        return ["ip", "netns", "exec", _host(name)]

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Lose whatever `some` send to `others`, and unless `one_way` what these send to them."""
        self._change(some, others, one_way, drop=True)

    def delay(self, some: Sequence[str], others: Sequence[str], seconds: float, *, one_way: bool = False) -> None:
        """Hold back whatever `some` send to `others`, and unless `one_way` what these send to them."""
        self._change(some, others, one_way, delay=seconds)

    def heal(self) -> None:
        """Every way is open again."""
        for one, other in permutations(self.address, 2):
            self._tell(one, other)

    def _change(self, some: Sequence[str], others: Sequence[str], one_way: bool, **what: float) -> None:
        for one in some:
            for other in others:
                self._tell(one, other, **what)
                if not one_way:
                    self._tell(other, one, **what)

    def _tell(self, one: str, other: str, **what: float) -> None:
        assert self._switch is not None and self._switch.stdin is not None
        self._switch.stdin.write(json.dumps({"from": _device(one), "to": _device(other), **what}) + "\n")
        self._switch.stdin.flush()
        self._await("done")

    def _await(self, word: str) -> None:
        assert self._switch is not None and self._switch.stdout is not None
        said = self._switch.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the switch said {said!r} instead of {word!r}")


@contextmanager
def network(names: Iterable[str]) -> Iterator[Network]:
    """One at a time on this machine, since all have the same addresses: another worker's test waits for its turn."""
    made = Network(names)
    with (Path(tempfile.gettempdir()) / "penstock-hosts.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            made.up()
            yield made
        finally:
            made.down()


def _host(name: str) -> str:
    return f"penstock-{name}"


def _device(name: str) -> str:
    return f"ps-{name}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
