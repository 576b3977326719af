"""One application, several pipelines: a session of its own for each, and a pool of the scheduler.

A session keeps its settings and views to itself. Jobs of one pool wait for each other; between pools every free core
goes to the one that has the fewest, so that a pipeline with a backlog does not hold up one with three records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.application import of_session
from penstock.errors import MissingError
from penstock.spark.security import redaction
from penstock.spark.session import OWNED

POOL = "spark.scheduler.pool"
"""The local property of a thread that names the pool of its jobs. A query's thread takes it over from who starts it."""


def own_session(session: Any, settings: Mapping[str, str], pool: str) -> Any:
    """A session beside another one, with settings of its own; the jobs of this thread are of `pool` from now on."""
    own = session.newSession()
    # The names of what came by a reference: an application that runs already does not know them.
    shown = redaction(settings)
    put_settings(own, {**settings, **shown})
    own.sparkContext.setLocalProperty(POOL, pool)
    return own


def put_settings(session: Any, settings: Mapping[str, str]) -> None:
    """Set what of the settings is a session's; what Penstock sets itself stays."""
    from pyspark.errors import PySparkException

    for name, value in of_session(settings).items():
        if name in OWNED:
            continue
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise MissingError(
                "SPARK_SETTING_REFUSED",
                f"setting {name}: Spark refuses it for a session",
                context={"cause": str(error).partition("\n")[0]},
                hint="correct it under `spark`, or run this pipeline apart from the others",
            ) from None
