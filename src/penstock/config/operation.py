"""How a pipeline runs: the size of its batches, where it shows its figures, what it does between batches, and the
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from penstock.config.fields import (
    Count,
    Duration,
    Location,
    SecretKind,
    Section,
    Size,
    Text,
    is_uri,
    show_duration,
    wrong,
)
from penstock.config.yaml_source import Given


def _to_memory(value: Any) -> Any:
    return None if value == "auto" else value


Memory = Annotated[
    Size | None,
    BeforeValidator(_to_memory),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["auto", "2 GiB"]}),
]


class FlowConfig(Section):
    """The aim and the bounds of flow control, which sets how many offsets the next batch takes."""

    target_batch: Duration = Field(
        default=timedelta(seconds=20), description="How long a batch should take while there is a backlog."
    )
    max_batch: Duration = Field(
        default=timedelta(minutes=2), description="The longest that a batch may take, as far as it can be foreseen."
    )
    min_offsets: Count = Field(default=1000, description="Flow control never goes below this many offsets.")
    max_offsets: Count | None = Field(
        default=None, description="The most offsets of any batch. Left out, there is no such bound."
    )
    memory: Memory = Field(
        default=None,
        description="The most bytes of messages in one batch, such as `2 GiB`. `auto` goes by how full the memory of "
        "the machines is.",
    )

    def check_values(self, given: Given) -> None:
        """The aims are within the bounds."""
        if self.target_batch > self.max_batch:
            target, most = show_duration(self.target_batch), show_duration(self.max_batch)
            at = "target_batch" if "target_batch" in given else "max_batch"
            given.report(at, f"target_batch {target} is longer than max_batch {most}", at_key=False)
        if self.max_offsets is not None and self.min_offsets > self.max_offsets:
            message = f"min_offsets {self.min_offsets:,} is more than max_offsets {self.max_offsets:,}"
            given.report("min_offsets" if "min_offsets" in given else "max_offsets", message, at_key=False)


class OtelConfig(Section):
    """Push the figures by OpenTelemetry's protocol over HTTP. Needs the extra: `pip install penstock[otel]`."""

    endpoint: Annotated[Text, SecretKind.URL] | None = Field(
        default=None,
        description="Where the collector takes metrics, such as `http://localhost:4318/v1/metrics`. Left out, what "
        "OpenTelemetry's own environment variables say.",
    )
    every: Duration = Field(default=timedelta(seconds=15), description="How often they are pushed.")


class MetricsConfig(Section):
    """The figures of the running pipeline, for Prometheus and OpenTelemetry."""

    host: Text = Field(default="127.0.0.1", description="The address that Prometheus finds the figures at.")
    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="The port of that address; 0 takes a free one, and the run says which. Left out, nothing listens.",
    )
    otel: OtelConfig | None = Field(default=None, description="Push them by OpenTelemetry as well.")


_EVERY = re.compile(r"\s*every\s+(.+)", re.IGNORECASE)


class CheckpointBackupConfig(Section):
    """A copy of the checkpoint on a schedule, while the pipeline runs."""

    every: Duration = Field(description="How often a copy is made.")
    keep: Count = Field(default=10, description="How many copies are kept; the oldest go.")
    to: Location | None = Field(
        default=None, description="Where the copies go. Left out, the folder `<checkpoint>-backups`."
    )


class MaintenanceConfig(Section):
    """Compaction and clean-up of the pipeline's own tables, between batches of the running pipeline."""

    every: Duration = Field(description="How often the tables are maintained.")
    within: Duration = Field(
        default=timedelta(minutes=1), description="The time after which the next batch waits no longer for it."
    )
    keep: Duration = Field(
        default=timedelta(days=7),
        description="How long files that no version of a table names any more, and old versions, stay for readers.",
    )


def _spelled_out(value: Any) -> Any:
    """`every 6 hours` is short for `{every: 6 hours}`."""
    if not isinstance(value, str):
        return value
    found = _EVERY.fullmatch(value)
    if found is None:
        raise wrong("expected `every` and a duration, such as every 6 hours, or the keys every, keep and to")
    return {"every": found[1]}


CheckpointBackup = Annotated[CheckpointBackupConfig, BeforeValidator(_spelled_out)]


def _check_folder(location: str) -> str:
    if is_uri(location):
        raise wrong("a folder of the cluster's machines is expected", "what an address names is shared as it is")
    return location


def _check_file(location: str) -> str:
    if is_uri(location):
        raise wrong("a file below the folder of the pipeline file is expected")
    return location


class ClusterConfig(Section):
    """What the machines of a cluster share and have. Not used where `spark.master` is local or on this machine."""

    shared_paths: Annotated[tuple[Annotated[Location, AfterValidator(_check_folder)], ...], Field(strict=False)] = (
        Field(
            default=(),
            description="Folders that every machine of the cluster sees under the same path, such as a network file "
            "system. Tables, files and the checkpoint may lie in them; any other local path is refused on a cluster.",
            examples=[["/mnt/lake"]],
        )
    )
    environment: Literal["pack", "installed"] | None = Field(
        default=None,
        description="Where executors have their Python packages from: `pack` sends those of this environment along, "
        "packed once for each version of it; `installed` finds them there, as in an image. Left out, those of this "
        "machine where the cluster is on it, `installed` on Kubernetes and inside spark-submit, else `pack`.",
    )
    python: Text | None = Field(
        default=None,
        description="The Python of the executors; left out, `python3.` and the version that runs Penstock, by which "
        "packages are packed.",
        examples=["/usr/bin/python3.11"],
    )
    packages: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        default=(),
        description="Packages to pack besides those of Penstock and those that the pipeline's own Python imports.",
        examples=[["geopy"]],
    )
    extra_files: Annotated[tuple[Annotated[Location, AfterValidator(_check_file)], ...], Field(strict=False)] = Field(
        default=(),
        description="Files below the folder of the pipeline file that its own Python reads, or imports by a name made "
        "at run time. They are sent along with the modules that it imports; nothing else in the folder is. A file that "
        "`${file:...}` names contains a secret, and is refused.",
        examples=[["rates.csv"]],
    )


# The settings of `spark:`, split into those of the Spark application and those of a session.
#
# Pipelines that share an application have each a session of their own, and so each its own `spark.sql.*`. What belongs
# to the application is set once for all of them.

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
"""Settings that look like a session's and belong to the application. A test compares them with Spark's own list."""

Setting = TypeVar("Setting")


def is_of_application(name: str) -> bool:
    """Whether a setting applies to the whole application."""
    return name in STATIC_SQL or name.startswith(_OF_HIVE) or not name.startswith(_OF_A_SESSION)


def of_application(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings that apply to the whole application."""
    return {name: value for name, value in settings.items() if is_of_application(name)}


def of_session(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings that may differ between sessions."""
    return {name: value for name, value in settings.items() if not is_of_application(name)}
