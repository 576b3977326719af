"""The settings of `spark:`, told apart: those of the Spark application, and those of a session in it.

Pipelines that share an application have each a session of their own, and so each its own `spark.sql.*`. What belongs to
the application is said once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_OF_A_SESSION = ("spark.sql.", "spark.databricks.")
_OF_HIVE = "spark.sql.hive."
STATIC_SQL = frozenset(
    f"spark.sql.{name}"
    for name in (
        "broadcastExchange.maxThreadThreshold",
        "cache.serializer",
        "catalog.spark_catalog.defaultDatabase",
        "catalogImplementation",
        "codegen.cache.maxEntries",
        "codegen.comments",
        "debug",
        "defaultUrlStreamHandlerFactory.enabled",
        "event.truncate.length",
        "extensions",
        "extensions.test.loadFromCp",
        "filesourceTableRelationCacheSize",
        "globalTempDatabase",
        "metadataCacheTTLSeconds",
        "queryExecutionListeners",
        "resultQueryStage.maxThreadThreshold",
        "shuffleExchange.maxThreadThreshold",
        "sources.disabledJdbcConnProviderList",
        "sources.schemaStringLengthThreshold",
        "streaming.streamingQueryListeners",
        "streaming.ui.enabled",
        "streaming.ui.enabledCustomMetricList",
        "streaming.ui.retainedProgressUpdates",
        "streaming.ui.retainedQueries",
        "subquery.maxThreadThreshold",
        "ui.retainedExecutions",
        "warehouse.dir",
    )
)
"""What begins as a session's does, and is the application's all the same. A test holds it to Spark's own list."""

Setting = TypeVar("Setting")


def is_of_application(name: str) -> bool:
    """Whether a setting holds for the whole application."""
    return name in STATIC_SQL or name.startswith(_OF_HIVE) or not name.startswith(_OF_A_SESSION)


def of_application(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings that hold for the whole application."""
    return {name: value for name, value in settings.items() if is_of_application(name)}


def of_session(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings that each session may have its own way."""
    return {name: value for name, value in settings.items() if not is_of_application(name)}
