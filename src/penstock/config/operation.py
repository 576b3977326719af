"""How a pipeline runs: batch size, metrics, work between batches, and the cluster."""

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
        default=timedelta(seconds=20), description="The target duration of a batch while there is a backlog."
    )
    max_batch: Duration = Field(
        default=timedelta(minutes=2), description="The maximum duration of a batch, as far as it can be predicted."
    )
    min_offsets: Count = Field(default=1000, description="The minimum number of offsets per batch.")
    max_offsets: Count | None = Field(
        default=None, description="The maximum number of offsets per batch. Unlimited if omitted."
    )
    memory: Memory = Field(
        default=None,
        description="The maximum bytes of messages per batch, such as `2 GiB`. `auto` depends on the memory use of "
        "the machines.",
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
        description="The URL of the collector, such as `http://localhost:4318/v1/metrics`. Defaults to "
        "OpenTelemetry's environment variables.",
    )
    every: Duration = Field(default=timedelta(seconds=15), description="The push interval.")


class MetricsConfig(Section):
    """The figures of the running pipeline, for Prometheus and OpenTelemetry."""

    host: Text = Field(default="127.0.0.1", description="The address that Prometheus scrapes.")
    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="The port to listen on; 0 picks a free one, which the run prints. If omitted, there is no "
        "listener.",
    )
    otel: OtelConfig | None = Field(default=None, description="Also push the metrics by OpenTelemetry.")


_EVERY = re.compile(r"\s*every\s+(.+)", re.IGNORECASE)


class CheckpointBackupConfig(Section):
    """A copy of the checkpoint on a schedule, while the pipeline runs."""

    every: Duration = Field(description="The interval between copies.")
    keep: Count = Field(default=10, description="The number of copies to keep; older ones are deleted.")
    to: Location | None = Field(default=None, description="The target folder. Defaults to `<checkpoint>-backups`.")


class MaintenanceConfig(Section):
    """Compaction and clean-up of the pipeline's own tables, between batches of the running pipeline."""

    every: Duration = Field(description="The maintenance interval.")
    within: Duration = Field(
        default=timedelta(minutes=1), description="The maximum time that the next batch waits for maintenance."
    )
    keep: Duration = Field(
        default=timedelta(days=7),
        description="How long old versions, and files that no version references, are kept for readers.",
    )


def _spelled_out(value: Any) -> Any:
    """`every 6 hours` is short for `{every: 6 hours}`."""
    if not isinstance(value, str):
        return value
    found = _EVERY.fullmatch(value)
    if found is None:
        raise wrong("expected `every` and a duration, such as every 6 hours, or a mapping with every, keep and to")
    return {"every": found[1]}


CheckpointBackup = Annotated[CheckpointBackupConfig, BeforeValidator(_spelled_out)]


def _check_folder(location: str) -> str:
    if is_uri(location):
        raise wrong("expected a local folder of the cluster's machines", "remote URLs are shared anyway")
    return location


def _check_file(location: str) -> str:
    if is_uri(location):
        raise wrong("expected a file below the folder of the pipeline file")
    return location


class ClusterConfig(Section):
    """What the machines of a cluster share and have. Not used where `spark.master` is local or on this machine."""

    shared_paths: Annotated[tuple[Annotated[Location, AfterValidator(_check_folder)], ...], Field(strict=False)] = (
        Field(
            default=(),
            description="Folders that every machine of the cluster mounts at the same path, such as a network file "
            "system. Tables, files and the checkpoint may be stored there; any other local path is refused on a "
            "cluster.",
            examples=[["/mnt/lake"]],
        )
    )
    environment: Literal["pack", "installed"] | None = Field(
        default=None,
        description="How executors get their Python packages: `pack` ships the current environment, packed once per "
        "version; `installed` expects them on the executors, as in an image. Defaults to the local environment if "
        "the cluster runs on this machine, `installed` on Kubernetes and inside spark-submit, else `pack`.",
    )
    python: Text | None = Field(
        default=None,
        description="The Python of the executors; defaults to the `python3.` version that runs Penstock, which "
        "packages are packed for.",
        examples=["/usr/bin/python3.11"],
    )
    packages: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        default=(),
        description="Packages to pack in addition to those that Penstock and the pipeline's own Python code import.",
        examples=[["geopy"]],
    )
    extra_files: Annotated[tuple[Annotated[Location, AfterValidator(_check_file)], ...], Field(strict=False)] = Field(
        default=(),
        description="Files below the folder of the pipeline file that its own Python code reads, or imports "
        "dynamically. They are shipped with the modules that it imports; nothing else in the folder is. A file named "
        "by `${file:...}` contains a secret and is refused.",
        examples=[["rates.csv"]],
    )


# The settings of `spark:`, split into those of the Spark application and those of a session.
#
# Pipelines that share an application have separate sessions, and so separate `spark.sql.*` settings. What belongs
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
