"""What SIGTERM and Ctrl-C do to a run, and that clearing up is not cut short."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.cli import signals
from penstock.cli.signals import StopOnSignal, interrupt_on_sigterm, undisturbed
from penstock.engine.patience import StopRequest


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_the_run_interrupts(number: int) -> None:
    stop = StopRequest()
    StopOnSignal(stop)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert not stop.asked()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_the_run_asks_for_a_stop(number: int) -> None:
    stop = StopRequest()
    StopOnSignal(stop).running = True
    os.kill(os.getpid(), number)
    assert stop.asked()


def test_second_ctrl_c_interrupts_but_not_one_passed_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    StopOnSignal(StopRequest()).running = True
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(signals, "_DOUBLED_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_however_often_lets_the_batch_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_DOUBLED_SECONDS", 0.0)
    stop = StopRequest()
    StopOnSignal(stop).running = True
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked()


def test_stop_asked_by_a_signal_wakes_the_waiter() -> None:
    stop = StopRequest()
    StopOnSignal(stop).running = True
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    assert stop.asked(within=30)
    assert time.monotonic() - began < 10


def test_stop_not_asked_waits_as_long_as_told() -> None:
    began = time.monotonic()
    assert not StopRequest().asked(within=0.05)
    assert time.monotonic() - began >= 0.05


def test_undisturbed_ignores_signals_and_then_gives_the_handlers_back() -> None:
    interrupt_on_sigterm()
    with undisturbed():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
