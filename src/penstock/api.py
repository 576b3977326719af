"""Penstock from a script or a notebook: the commands `validate`, `plan` and `run` as methods.

Nothing heavy is imported before it is needed: `load` and `validate` need neither Spark nor a Kafka client, `plan`
starts no JVM, `run` starts Spark unless it gets a session. Errors are `penstock.errors.PenstockError`, with a code,
facts and a hint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.preflight.options import RunOptions, RunSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import PipelineConfig
    from penstock.engine.listener import Listener
    from penstock.engine.patience import StopRequest
    from penstock.ops.plan import RunPlan


@dataclass(frozen=True)
class Pipeline:
    """One pipeline file, read and validated."""

    path: Path
    config: PipelineConfig

    def validate(self) -> None:
        """Check the file as it is now, after an edit for instance. Raises `InvalidDefinition` with every problem.

        The pipeline itself stays as it was loaded; to run the edited file, load it again.
        """
        from penstock.assembly.user_code import refuse_missing_code

        refuse_missing_code(load(self.path).config)

    def plan(
        self, *, resume_from_table: bool = False, accept_duplicates: bool = False, catch_up: bool = False
    ) -> RunPlan:
        """Check brokers, tables and checkpoint: what a run with these options would do, and what would stop it."""
        from penstock.ops.plan import plan_run

        options = RunOptions(
            resume_from_table=resume_from_table, accept_duplicates=accept_duplicates, catch_up=catch_up
        )
        return plan_run(self.config, options)

    def run(
        self,
        *,
        available_now: bool = False,
        resume_from_table: bool = False,
        accept_duplicates: bool = False,
        catch_up: bool = False,
        give_up_after: float = RunOptions.give_up_after,
        stalled_after: float = RunOptions.stalled_after,
        listener: Listener | None = None,
        stop: StopRequest | None = None,
        session: SparkSession | None = None,
    ) -> RunSummary:
        """Run until the topics are drained (`available_now`), `stop` is asked, or it cannot go on.

        `listener` is called with each event of `penstock.engine.listener`, in order. A given `session` is used
        and left open; without one Spark is started and stopped. Transient faults are retried for
        `give_up_after` seconds; a batch without any progress for `stalled_after` seconds is abandoned.
        """
        from penstock.spark.cache import log_file
        from penstock.supervision.run import run

        options = RunOptions(
            available_now=available_now,
            resume_from_table=resume_from_table,
            accept_duplicates=accept_duplicates,
            catch_up=catch_up,
            give_up_after=give_up_after,
            stalled_after=stalled_after,
            log=log_file(self.config.name),
        )
        return run(self.config, options, listener or (lambda event: None), stop, session)


def load(path: str | Path) -> Pipeline:
    """Read a pipeline file. Raises `penstock.config.InvalidDefinition` with everything that is wrong with it."""
    from penstock.config import load as load_config

    file = Path(path)
    return Pipeline(file, load_config(file))
