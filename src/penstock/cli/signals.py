"""Signals: what is in hand is finished or cleared up, and whoever asks twice is let out."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, ParamSpec

import typer
from rich.markup import escape

from penstock.cli.render import err

# Every command loads this module, few run a pipeline.
if TYPE_CHECKING:
    from penstock.engine.patience import StopRequest

P = ParamSpec("P")

_STOPS = (signal.SIGTERM, signal.SIGINT)
_DOUBLED_SECONDS = 1.0


def interrupt_on_sigterm() -> None:
    """SIGTERM clears up as Ctrl-C does, instead of ending the process on the spot."""
    signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no signal cut the clearing up short."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopOnSignal:
    """Makes SIGTERM and Ctrl-C ask a run to stop. Before `running` is set there is nothing to finish: they interrupt.

    A second Ctrl-C interrupts too, unless it comes so soon that a wrapper has passed the first one on.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._asked_at = 0.0
        self.running = False
        for number in _STOPS:
            signal.signal(number, self._take)

    def listening(self, listener: Callable[P, None]) -> Callable[P, None]:
        """The listener, whose last argument is an event: from the start of the run on, signals ask."""
        from penstock.engine.listener import Started

        def listen(*heard: P.args, **named: P.kwargs) -> None:
            self.running = self.running or isinstance(heard[-1], Started)
            listener(*heard, **named)

        return listen

    @contextmanager
    def before_first_batch(self, next_step: str = "", exit_code: int = 0) -> Iterator[None]:
        """An interrupt before the run has begun ends the command in a line."""
        try:
            yield
        except KeyboardInterrupt:
            if self.running:
                raise
            err.print(f"stopped before the first batch{escape(next_step)}")
            raise typer.Exit(exit_code) from None

    def _take(self, number: int, _: object) -> None:
        now = time.monotonic()
        insisted = number == signal.SIGINT and self._stop.asked() and now - self._asked_at > _DOUBLED_SECONDS
        if not self.running or insisted:
            raise KeyboardInterrupt
        if not self._stop.asked():
            self._asked_at = now
            self._stop.ask()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
