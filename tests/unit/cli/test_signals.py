"""What SIGTERM and Ctrl-C do to a run, and that clearing up is not cut short."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import typer

from penstock.cli import signals
from penstock.cli.signals import StopOnSignal, interrupt_on_sigterm, undisturbed
from penstock.engine.listener import Notice, Started
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


def test_listening_from_the_start_of_the_run_a_signal_asks_and_events_are_passed_on() -> None:
    stop, heard = StopRequest(), list[object]()
    signals = StopOnSignal(stop)
    listen = signals.listening(lambda name, event: heard.append((name, event)))
    listen("orders", Notice("Spark starts"))
    assert not signals.running
    started = Started("orders", "direct", "no transforms", 1, "q")
    listen("orders", started)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked()
    assert heard[1] == ("orders", started)


def test_interrupt_before_the_first_batch_ends_the_command_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, StopOnSignal(StopRequest()).before_first_batch("; go on: [x]", 75):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.exit_code == 75
    assert capsys.readouterr().err == "stopped before the first batch; go on: [x]\n"


def test_interrupt_during_the_run_stays_one() -> None:
    signals = StopOnSignal(StopRequest())
    signals.running = True
    with pytest.raises(KeyboardInterrupt), signals.before_first_batch():
        raise KeyboardInterrupt
