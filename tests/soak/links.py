"""The links of the soak, all of them over loopback: those to some ports can be cut, and what goes there held back."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hosts.switch import Waiting, tun_device

_AHEAD_OF_LOCAL, _LOCAL = "1", "5"
_DETOUR, _DETOUR_TABLE = "detour", "77"
_MOST_BYTES = 65_535


def prepare_network() -> None:
    """Loopback up; and rules of ours before the one that finds its addresses."""
    for words in (
        ("link", "set", "lo", "up"),
        ("rule", "add", "pref", _LOCAL, "lookup", "local"),
        ("rule", "del", "pref", "0"),
    ):
        _ip(*words)


@contextlib.contextmanager
def cut(ports: Sequence[int], *, both: bool) -> Iterator[None]:
    """Lose what comes from these ports: whoever asks there is heard, and hears nothing. With `both` nor is heard."""
    rules = [("ipproto", "tcp", "sport", str(port), "blackhole") for port in ports]
    if both:
        rules += [("ipproto", "tcp", "dport", str(port), "unreachable") for port in ports]
    with _ruled(rules):
        yield


@contextlib.contextmanager
def late(ports: Sequence[int], seconds: float) -> Iterator[None]:
    """Have what comes from these ports arrive later, and what goes there: each takes a way round, where it waits."""
    ways = [(way, str(port)) for port in ports for way in ("sport", "dport")]
    rules = [("iif", "lo", "ipproto", "tcp", way, port, "lookup", _DETOUR_TABLE) for way, port in ways]
    with _Detour(seconds), _ruled(rules):
        yield


@contextlib.contextmanager
def _ruled(rules: Sequence[Sequence[str]]) -> Iterator[None]:
    made: list[Sequence[str]] = []
    try:
        for rule in rules:
            _ip("rule", "add", "pref", _AHEAD_OF_LOCAL, *rule)
            made.append(rule)
        yield
    finally:
        for rule in made:
            _ip("rule", "del", "pref", _AHEAD_OF_LOCAL, *rule)


class _Detour:
    """A device into which packets are sent, and out of which they come some time later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name=_DETOUR, daemon=True)

    def __enter__(self) -> None:
        self._device = tun_device(_DETOUR)
        _ip("link", "set", _DETOUR, "up")
        # Packets of loopback may come out of it.
        for name, value in (("route_localnet", "1"), ("accept_local", "1"), ("rp_filter", "0")):
            Path(f"/proc/sys/net/ipv4/conf/{_DETOUR}/{name}").write_text(value)
        Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
        _ip("route", "add", "default", "dev", _DETOUR, "table", _DETOUR_TABLE)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        # What is on its way still arrives.
        self._done.wait(self._seconds)
        self._done.set()
        self._thread.join(10)
        os.close(self._device)

    def _pass_on(self) -> None:
        waiting = Waiting()
        while not self._done.is_set():
            patience = waiting.patience()
            if select.select([self._device], [], [], 0.1 if patience is None else min(patience, 0.1))[0]:
                with contextlib.suppress(OSError):
                    waiting.hold(self._seconds, self._device, os.read(self._device, _MOST_BYTES))
            waiting.let_go()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
