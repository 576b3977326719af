"""The Spark application of a fleet: what all of its pipelines need, and what is set for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from penstock.assembly.build import build
from penstock.assembly.placing import shipping_of
from penstock.assembly.reaching import store_settings_of
from penstock.assembly.starting import Needs, application, needs_of
from penstock.config import PipelineConfig, Problem, reveal
from penstock.config.application import of_application
from penstock.errors import TransientError
from penstock.spark.internals import process_of
from penstock.supervision.chores import Chores
from penstock.supervision.fleet_events import FleetOptions

_BUILT_AT_ONCE = 8
_IDLE_MILLIS = 10
"""How long Spark waits by default until it asks again for new records, when there were none."""


class FleetApplication:
    """One application for `count` pipelines; of those whose files are wrong nothing is known yet."""

    def __init__(self, configs: Sequence[PipelineConfig], count: int, options: FleetOptions) -> None:
        self._configs, self._count, self._options = tuple(configs), count, options
        self.settings = {
            "spark.scheduler.mode": "FAIR",
            # Each of them asks the brokers in vain that often.
            "spark.sql.streaming.pollingDelay": f"{_IDLE_MILLIS * max(1, count)}ms",
            # Else every store of state of every pipeline takes its own share of the memory.
            "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        }
        self.problems: list[Problem] = []
        """Where one asks for another way into the same store than one before it."""
        for config in configs:
            ways_in = store_settings_of(config)
            if any(self.settings.get(name, value) != value for name, value in ways_in.items()):
                self.problems.append(
                    config.positions.problem(
                        ("storage",),
                        "a store that other pipelines reach too is reached in another way",
                        hint="write the same `storage` for the same buckets, or run them apart",
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
        """What a pipeline that comes later asks of the application and cannot have."""
        own = reveal(of_application(config.spark))
        found = [
            config.positions.problem(
                ("spark", name),
                f"{name} is the application's, which runs already with another one",
                hint="stop all of them and start again, or leave it out",
            )
            for name, value in own.items()
            if self.settings.get(name) != value
        ]
        if any(self.settings.get(name) != value for name, value in store_settings_of(config).items()):
            found.append(
                config.positions.problem(
                    ("storage",),
                    "it needs a store that the application, which runs already, was not started for",
                    hint="stop all of them and start again",
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
                "running the pipelines: Spark's process has ended",
                context={"exit code": process.returncode, **log},
                hint="its log says why, memory is the usual cause; started again, each goes on where it was",
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
