"""Signals: the current batch is finished, or cleaned up after; a second Ctrl-C interrupts."""

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
    """Make SIGTERM clean up as Ctrl-C does, instead of ending the process at once."""
    signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals while cleaning up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopOnSignal:
    """Makes SIGTERM and Ctrl-C ask a run to stop. Before `running` is set there is nothing to finish: they interrupt.

    A second Ctrl-C interrupts too, unless it follows so soon that it is the first one, passed on by a wrapper.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._asked_at = 0.0
        self.running = False
        for number in _STOPS:
            signal.signal(number, self._handle)

    def listening(self, listener: Callable[P, None]) -> Callable[P, None]:
        """The listener, whose last argument is an event. After `Started`, signals ask the run to stop."""
        from penstock.engine.listener import Started

        def listen(*args: P.args, **kwargs: P.kwargs) -> None:
            self.running = self.running or isinstance(args[-1], Started)
            listener(*args, **kwargs)

        return listen

    @contextmanager
    def before_first_batch(self, next_step: str = "", exit_code: int = 0) -> Iterator[None]:
        """An interrupt before the run has started ends the command with one line."""
        try:
            yield
        except KeyboardInterrupt:
            if self.running:
                raise
            err.print(f"stopped before the first batch{escape(next_step)}")
            raise typer.Exit(exit_code) from None

    def _handle(self, number: int, _: object) -> None:
        now = time.monotonic()
        repeated = number == signal.SIGINT and self._stop.asked() and now - self._asked_at > _DOUBLED_SECONDS
        if not self.running or repeated:
            raise KeyboardInterrupt
        if not self._stop.asked():
            self._asked_at = now
            self._stop.ask()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
