"""One pipeline of a fleet: its definition, its run in its own thread, and its next retry.

A failed run stops alone. It is retried with a back-off that doubles each time, and resets once a run has completed a
batch.
"""

from __future__ import annotations

import gc
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.assembly.build import build
from penstock.assembly.placing import shipping_of
from penstock.assembly.reaching import store_settings_of
from penstock.assembly.starting import Needs, application, needs_of
from penstock.config import PipelineConfig, Problem, reveal
from penstock.config.operation import of_application
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import DefinitionError, PenstockError, TransientError, as_penstock_error, back_off
from penstock.preflight.options import RunSummary
from penstock.spark.internals import process_of
from penstock.spark.session import own_session
from penstock.supervision.fleet_events import Ended, FleetEvent, FleetListener, FleetOptions, Outcome, Waiting
from penstock.supervision.run import run
from penstock.supervision.upkeep import Chores

NEVER = math.inf


class Member:
    """A pipeline of a fleet, owned by the thread of the fleet; only its run is in another one."""

    def __init__(self, file: Path, options: FleetOptions, listener: FleetListener) -> None:
        self.file = file
        self.config: PipelineConfig | None = None
        self.due = NEVER
        """When it is started, on the monotonic clock."""
        self.next: PipelineConfig | None = None
        """The definition to continue with when the run has stopped."""
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
        """Its name: that of the file if the file is invalid."""
        return self.config.name if self.config is not None else str(self.file)

    @property
    def running(self) -> bool:
        """Whether there is a run, or a finished one to handle."""
        return self._thread is not None

    def take(self, config: PipelineConfig, now: float) -> None:
        """Continue with this definition: at once, or when the current run has stopped."""
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
        """Start its run, in a new session of the same application."""
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
        """Finish the current batch, and start no more runs."""
        self.due, self.next = NEVER, None
        self._stop.ask()

    def join(self, seconds: float) -> bool:
        """Wait for the run; whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def settle(self, now: float) -> bool:
        """Check whether the run has ended, and decide what follows; whether it has."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        # Spark's own error of a query is in a ring with its frames, and these know the clients of the run: by itself it
        # may take hours until that is found.
        gc.collect()
        summary, error = self._ended
        if self.next is not None:
            # The result of the run with the old definition no longer matters.
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
        """How long to wait before the next retry; None for no retry."""
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
    """The error is kept during the next run: otherwise it would keep the clients of its own run open."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


# The Spark application of a fleet: what all of its pipelines need, and what is set for all of them.

_BUILT_AT_ONCE = 8
_IDLE_MILLIS = 10
"""Spark's default delay before it polls again for new records if there were none."""


class FleetApplication:
    """One application for `count` pipelines; of those whose files are wrong nothing is known yet."""

    def __init__(self, configs: Sequence[PipelineConfig], count: int, options: FleetOptions) -> None:
        self._configs, self._count, self._options = tuple(configs), count, options
        self.settings = {
            "spark.scheduler.mode": "FAIR",
            # Each of them polls the brokers in vain that often.
            "spark.sql.streaming.pollingDelay": f"{_IDLE_MILLIS * max(1, count)}ms",
            # Else every store of state of every pipeline takes its own share of the memory.
            "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        }
        self.problems: list[Problem] = []
        """Refuses connection settings for a store that differ from those of an earlier pipeline."""
        for config in configs:
            ways_in = store_settings_of(config)
            if any(self.settings.get(name, value) != value for name, value in ways_in.items()):
                self.problems.append(
                    config.positions.problem(
                        ("storage",),
                        "other pipelines connect to this store with other settings",
                        hint="use the same `storage` for the same buckets, or run them separately",
                    )
                )
            self.settings |= {**ways_in, **reveal(of_application(config.spark))}

    @contextmanager
    def opened(self, tell: Callable[[str], None]) -> Iterator[Any]:
        """The application, ended afterwards: what any of them needs, and where more may come, what any could."""
        watch = self._options.watch
        needs = Needs((), tables=watch, light=not watch, attempts=not watch)
        for one in self._needs():
            needs = needs.together(one)
        name = f"penstock {self._configs[0].name}" if self._configs else "penstock"
        if self._count > 1:
            name += f" and {self._count - 1} more"
        with application(name, self.settings, needs, self._options.run.log, tell) as session:
            yield session

    def problems_with(self, config: PipelineConfig) -> list[Problem]:
        """Requirements of a later pipeline that the running application cannot meet."""
        own = reveal(of_application(config.spark))
        found = [
            config.positions.problem(
                ("spark", name),
                f"{name} belongs to the Spark application, which already runs with another value",
                hint="stop all of them and restart, or remove it",
            )
            for name, value in own.items()
            if self.settings.get(name) != value
        ]
        if any(self.settings.get(name) != value for name, value in store_settings_of(config).items()):
            found.append(
                config.positions.problem(
                    ("storage",),
                    "it needs a store that the running application has no settings for",
                    hint="stop all of them and restart",
                )
            )
        return found

    def refuse_lost(self, session: Any) -> None:
        """Raise where Spark's process is gone, and all pipelines with it."""
        process = process_of(session)
        if process is not None and process.poll() is not None:
            log = {"log": self._options.run.log} if self._options.run.log is not None else {}
            raise TransientError(
                "SPARK_LOST",
                "running the pipelines: the Spark process has ended",
                context={"exit code": process.returncode, **log},
                hint="see its log; memory is the usual cause. After a restart, each pipeline continues where it "
                "stopped",
            )

    def _needs(self) -> list[Needs]:
        """What each needs. One that cannot be built now, because a registry is away, may need anything.

        An error in it is reported when it is started, as its own state.
        """

        def needs(config: PipelineConfig) -> Needs:
            with suppress(Exception):
                pipeline = build(config)
                return needs_of(pipeline, tables=Chores.need_tables(pipeline))
            return Needs((), tables=True, light=False, attempts=False, shipping=shipping_of(config))

        with ThreadPoolExecutor(_BUILT_AT_ONCE) as threads:
            return list(threads.map(needs, self._configs))
