"""One pipeline of a fleet: its definition, its run in a thread of its own, and when it is tried again.

A run that ends by an error stops alone. It is tried again after a pause that doubles from try to try, and begins anew
once a run has brought a batch to its end.
"""

from __future__ import annotations

import gc
import math
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config import PipelineConfig, reveal
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest, back_off
from penstock.errors import DefinitionError, PenstockError, as_penstock_error
from penstock.preflight.options import RunSummary
from penstock.spark.sharing import own_session
from penstock.supervision.fleet_events import Ended, FleetEvent, FleetListener, FleetOptions, Outcome, Waiting
from penstock.supervision.run import run

NEVER = math.inf


class Member:
    """A pipeline of a fleet, looked after by the thread that owns the fleet; only its run is in another one."""

    def __init__(self, file: Path, options: FleetOptions, listener: FleetListener) -> None:
        self.file = file
        self.config: PipelineConfig | None = None
        self.due = NEVER
        """When it is started, on the monotonic clock."""
        self.next: PipelineConfig | None = None
        """The definition to go on with when the run has stopped."""
        self.removed = False
        self.outcome = Outcome()
        self._options, self._listener = options, listener
        self._thread: threading.Thread | None = None
        self._stop = StopRequest()
        self._ended: tuple[RunSummary | None, PenstockError | None] = (None, None)
        self._attempt = 0
        self._batches = 0
        self._told: str | None = None

    @property
    def name(self) -> str:
        """What it is called: by its file where that holds no pipeline."""
        return self.config.name if self.config is not None else str(self.file)

    @property
    def running(self) -> bool:
        """Whether there is a run, or what is left of one to be looked at."""
        return self._thread is not None

    def take(self, config: PipelineConfig, now: float) -> None:
        """Go on with this definition: at once, or when the run in hand has stopped."""
        self._attempt, self._told, self.removed = 0, None, False
        if self.running:
            self.next = config
            self._stop.ask()
        else:
            self.config, self.due, self.outcome = config, now, Outcome()

    def refuse(self, error: PenstockError, now: float, *, told: bool = False) -> None:
        """There is no definition to run; where files are watched, it is looked for again."""
        self._told = str(error) if told else self._told
        delay = self._delay(error)
        self.config, self.due = None, now + delay if delay is not None else NEVER
        self._wait(error, delay)

    def start(self, session: Any, sharing: int) -> None:
        """Start its run, in a session of its own beside this one."""
        assert self.config is not None and self._thread is None
        self.due, self._stop, self._ended, self._batches = NEVER, StopRequest(), (None, None), 0
        self._thread = threading.Thread(
            target=self._run,
            args=(self.config, self._stop, session, sharing),
            name=f"pipeline {self.name}",
            daemon=True,
        )
        self._thread.start()

    def ask_stop(self) -> None:
        """Finish the batch in hand, and start no more."""
        self.due, self.next = NEVER, None
        self._stop.ask()

    def join(self, seconds: float) -> bool:
        """Wait for the run; whether there is none any more."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def settle(self, now: float) -> bool:
        """Look whether the run has ended, and see to what comes of it; whether it has."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        # Spark's own error of a query is in a ring with its frames, and these know the clients of the run: by itself it
        # may take hours until that is found.
        gc.collect()
        summary, error = self._ended
        if self.next is not None:
            # How the run with the old definition ended is of no interest any more.
            self.config, self.next, self.due, self.outcome = self.next, None, now, Outcome()
        elif error is None:
            assert summary is not None
            self.outcome, self._attempt, self._told = Outcome(), 0, None
            self._tell(Ended(summary))
        else:
            delay = self._delay(error)
            self.due = now + delay if delay is not None else NEVER
            self._wait(error, delay)
        return True

    def _delay(self, error: PenstockError) -> float | None:
        """How long to wait before the next try; none where none is made."""
        final = isinstance(error, DefinitionError) and not self._options.watch
        if self._options.run.available_now or self._stop.asked() or final:
            return None
        self._attempt = 1 if self._batches else self._attempt + 1
        return back_off(self._attempt, self._options.first_delay, self._options.longest_delay)

    def _wait(self, error: PenstockError, delay: float | None) -> None:
        text = str(error)
        self.outcome = Outcome(error)
        self._tell(Waiting(error, self._attempt, delay, again=text == self._told))
        self._told = text

    def _run(self, config: PipelineConfig, stop: StopRequest, session: Any, sharing: int) -> None:
        options = replace(self._options.run, sharing=sharing)
        try:
            own = own_session(session, reveal(config.spark), pool=config.name)
            self._ended = run(config, options, self._hear, stop, own), None
        except Exception as error:
            self._ended = None, self._error(error)
            _forget_locals(error)

    def _error(self, error: Exception) -> PenstockError:
        found = as_penstock_error(error)
        if found is not error:
            found.summary = found.summary.partition("\n")[0]  # a member's error is one line among many members'
        if found.code == "BATCH_FAILED" and self._options.run.log is not None:
            found.context["log"] = str(self._options.run.log)
        return found

    def _hear(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._batches += 1
            self._told = None
        self._tell(event)

    def _tell(self, event: FleetEvent) -> None:
        self._listener(self.name, event)


def _forget_locals(error: BaseException) -> None:
    """The error is kept while the next run goes on: without this it would keep the clients of its own one open."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__
