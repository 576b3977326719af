"""The pipeline: the whole file as one frozen value that knows where it was written, and its parts during the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from penstock.config.alerts import AlertsConfig
from penstock.config.connections import StorageConfig, check_client_options
from penstock.config.ddl import Column
from penstock.config.decode import ByTopicDecodeConfig, DecodeConfig, FormatConfig
from penstock.config.fields import Count, Duration, Location, Name, Names, Section, Settings, Text
from penstock.config.operation import CheckpointBackup, ClusterConfig, FlowConfig, MaintenanceConfig, MetricsConfig
from penstock.config.problems import Path, Positions
from penstock.config.sinks import SinkConfig
from penstock.config.source import CONSUMER, KafkaSourceConfig, Topic
from penstock.config.tables import LookupConfig
from penstock.config.transforms import TransformConfig
from penstock.config.yaml_source import Document, Given


class NamedSourceConfig(KafkaSourceConfig):
    """One of several sources."""

    exactly_one: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Mapping[str, str]] = {}

    decode: FormatConfig = Field(discriminator="format", description="How bytes are decoded into columns.")
    transforms: Annotated[tuple[TransformConfig, ...], Field(strict=False)] = Field(
        default=(), description="Steps that run before the join; the last one is the watermark."
    )

    def check_values(self, given: Given) -> None:
        """The topics are given by name."""
        check_client_options(self.options, CONSUMER, given)
        if self.topics is None:
            given.report((), "a joined source needs its topics listed by name", "write topics: [...]")


Sources = Mapping[str, NamedSourceConfig]


def whole(sources: Mapping[str, NamedSourceConfig | None]) -> Sources | None:
    """The sources, if there are any and none was refused."""
    found = {name: source for name, source in sources.items() if source is not None}
    return found if found and len(found) == len(sources) else None


def as_one(sources: Sources) -> tuple[KafkaSourceConfig, ByTopicDecodeConfig]:
    """All the sources as one, which is what the brokers, the checkpoint and the sinks see of them."""
    first = next(iter(sources.values()))
    topics = tuple(topic for source in sources.values() for topic in source.topics or ())
    shared = {name: getattr(first, name) for name in KafkaSourceConfig.model_fields}
    start = first.start
    if any(isinstance(source.start, dict) for source in sources.values()):
        start = {
            topic: at
            for source in sources.values()
            if isinstance(source.start, dict)
            for topic, at in source.start.items()
        }
    merged = KafkaSourceConfig.model_construct(**{**shared, "topics": topics, "start": start})
    by_topic = {topic: source.decode for source in sources.values() for topic in source.topics or ()}
    return merged, ByTopicDecodeConfig.model_construct(by_topic=by_topic)


class QuarantineConfig(Section):
    """Where bad records go, with their bytes and the reason. Give `table`, `topic` or both."""

    table: Location | None = Field(default=None, description="The folder of a Delta table.")
    topic: Topic | None = Field(default=None, description="A Kafka topic on the brokers of the source.")
    max_redrives: Count = Field(
        default=3, description="How many times a record may fail in a redrive before it is parked."
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Bad records go somewhere."""
        if "table" not in given and "topic" not in given:
            given.report((), "neither table nor topic is given", "add one of them")


class RouteConfig(Section):
    """A route: some topics, or some of their rows, through their own steps to their own sinks."""

    topics: Annotated[tuple[Topic, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="The topics of this route. Defaults to all topics."
    )
    where: Text | None = Field(
        default=None,
        description="A Spark SQL condition over the decoded columns that selects the rows of this route. A row takes "
        "every route whose condition is true; a row that matches no route is dropped.",
    )
    otherwise: bool = Field(
        default=False, description="Take the rows that match no `where` of the other routes of the same topics."
    )
    transforms: Annotated[tuple[TransformConfig, ...], Field(strict=False)] = Field(
        default=(), description="The steps of this route, in this order."
    )
    sinks: Names = Field(description="The names of the sinks of this route. A sink belongs to one route.")


class TriggerConfig(Section):
    """When batches start."""

    every: Duration | None = Field(
        default=None,
        description="Start a batch at this interval. If omitted, a batch starts when the previous one ends.",
    )
    available_now: bool = Field(
        default=False, description="Read all available records, in as many batches as needed, then stop."
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """A pipeline either keeps running or stops."""
        if given["available_now"] is True and "every" in given:
            hint = "every keeps running; available_now reads the available records and stops"
            given.report("every", "every and available_now cannot be combined", hint)


def _from_sources() -> Any:
    """Filled from `sources` when the file is loaded; if both are missing, that is reported."""
    return None


_SPARK = {
    "spark.sql.session.timeZone": "times are in UTC in both lanes",
    "spark.sql.ansi.enabled": "both lanes follow the ANSI rules",
    "spark.sql.streaming.checkpointLocation": "it is checkpoint",
    "spark.app.name": "it is name",
    "spark.submit.deployMode": "it is the option --deploy-mode of penstock submit",
}


"""Settings of Spark that Penstock sets itself, and why."""


class PipelineConfig(Section):
    """A pipeline: a source, decoders, steps, sinks."""

    name: Name = Field(
        description="The name of the pipeline. It is part of every commit's identity: do not change it later."
    )
    lane: Literal["direct", "frame"] | None = Field(
        default=None,
        description="Force a lane: `direct` processes rows in Arrow only, `frame` in Spark. Defaults to the "
        "fastest supported lane, which `penstock plan` shows.",
    )
    source: KafkaSourceConfig = Field(default_factory=_from_sources, description="The source of the records.")
    decode: DecodeConfig = Field(default_factory=_from_sources, description="How bytes are decoded into columns.")
    sources: dict[Name, NamedSourceConfig] = Field(
        default_factory=dict,
        description="Two named sources to join, instead of `source` and `decode`: on the same brokers, each with "
        "its own `decode` and `transforms`.",
    )
    tables: dict[Name, LookupConfig] = Field(
        default_factory=dict, description="Tables to join rows with, by the name that steps use."
    )
    quarantine: QuarantineConfig | None = Field(
        default=None, description="Where bad records go. Without it, a bad record stops the pipeline."
    )
    transforms: Annotated[tuple[TransformConfig, ...], Field(strict=False)] = Field(
        default=(), description="The steps to apply to the rows, in this order."
    )
    routes: Annotated[tuple[RouteConfig, ...], Field(strict=False, min_length=1)] = Field(
        default=(),
        description="Several routes through one pipeline, instead of `transforms`: each with its own topics or "
        "rows, steps and sinks, in one query with one checkpoint.",
    )
    sinks: Annotated[tuple[SinkConfig, ...], Field(strict=False, min_length=1)] = Field(
        description="The sinks; without `routes`, each sink gets all rows."
    )
    checkpoint: Location = Field(description="The folder where Spark stores the progress. Each pipeline needs its own.")
    checkpoint_backup: CheckpointBackup | None = Field(
        default=None,
        description="Copy the checkpoint on a schedule while the pipeline runs: `every 6 hours`, or `{every: 6 hours, "
        "keep: 10, to: PATH}`.",
    )
    maintenance: MaintenanceConfig | None = Field(
        default=None, description="Compact and clean up the tables on a schedule, between batches."
    )
    storage: StorageConfig | None = Field(
        default=None,
        description="How to connect to object stores. Defaults to the environment (`AWS_ENDPOINT_URL`, "
        "`AWS_ACCESS_KEY_ID`, ...), then the role of the machine.",
    )
    trigger: TriggerConfig = Field(default=TriggerConfig(), description="When batches start.")
    flow: FlowConfig = Field(
        default=FlowConfig(),
        description="How flow control sets the batch size, unless `source.max_offsets` sets a fixed cap.",
    )
    metrics: MetricsConfig | None = Field(
        default=None, description="How a running pipeline exports metrics to Prometheus and OpenTelemetry."
    )
    alerts: AlertsConfig | None = Field(default=None, description="When a running pipeline sends alerts, and where.")
    spark: Settings = Field(default_factory=dict, description="Settings passed to Spark; each starts with `spark.`.")
    cluster: ClusterConfig | None = Field(
        default=None,
        description="What the machines of a cluster share and provide, for a `spark.master` that is not local.",
    )

    _positions: Positions | None = PrivateAttr(None)

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Check that required parts are present and that no parts exclude each other."""
        if "sources" in given:
            for part in ("source", "decode", "routes"):
                reason = "each source has its own" if part == "decode" else "sources takes its place"
                given.refuse((part,), f"and sources cannot be combined: {reason}", f"remove {part}")
        else:
            for part in ("source", "decode"):
                if part not in given:
                    given.report(part, "this key is required", at_key=False)
            source = given.section("source")
            gaps = source is not None and source["on_data_loss"] == "record"
            if gaps and not given.document.written("quarantine", "table"):
                message = (
                    "record writes the gaps to a table next to the quarantine table, but there is no quarantine table"
                )
                given.report(("source", "on_data_loss"), message, "add quarantine: {table: ...}", at_key=False)
        sources = given["sources"]
        named = [("source",), *(("sources", name) for name in (sources if isinstance(sources, dict) else ()))]
        fixed = next((path for path in named if given.document.written(*path, "max_offsets")), None)
        if "flow" in given and fixed is not None:
            hint = "remove one of them; flow.max_offsets limits flow control"
            given.report("flow", f"a fixed cap is set: {'.'.join(fixed)}.max_offsets", hint)
        spark = given["spark"]
        for name in spark if isinstance(spark, dict) else ():
            if not name.startswith("spark."):
                message = f'"{name}" is not a Spark setting: they start with spark.'
                given.report(("spark", name), message, f'did you mean "spark.{name}"?')
            elif name in _SPARK:
                given.report(("spark", name), f"{name} is set by Penstock: {_SPARK[name]}", "remove it")

    @property
    def group(self) -> str | None:
        """The consumer group to which the offsets of the sinks are committed, if any."""
        named = self.source.group
        return None if named is False else named or f"penstock.{self.name}"

    @property
    def adaptive(self) -> bool:
        """Whether flow control sets the size of the batches."""
        return all(source.max_offsets is None for source in (self.source, *self.sources.values()))

    @property
    def positions(self) -> Positions:
        """Where each value is in the file, for errors that are found later."""
        return self._positions or Positions(f"<{self.name}>")

    @property
    def file(self) -> FilePath | None:
        """The file that the pipeline was loaded from."""
        return FilePath(self._positions.file) if self._positions else None

    def on_master(self, master: str | None) -> PipelineConfig:
        """This pipeline on the given master instead of the one in the file."""
        if master is None:
            return self
        return self.with_spark({"spark.master": master})

    def with_spark(self, settings: Mapping[str, str]) -> PipelineConfig:
        """This pipeline with some settings of Spark before those of its file."""
        return self.model_copy(update={"spark": {**self.spark, **settings}})

    def written_at(self, positions: Positions) -> PipelineConfig:
        """This pipeline, knowing its file."""
        copy = self.model_copy()
        copy._positions = positions
        return copy


@dataclass(slots=True)
class Parts:
    """A pipeline file during the checks: the parts that other parts are checked against.

    A refused part is None and skipped in those checks, so that each mistake is reported once.
    """

    file: Document
    source: KafkaSourceConfig | None = None
    decode: DecodeConfig | None = None
    sources: dict[str, NamedSourceConfig | None] = field(default_factory=dict)
    tables: dict[str, LookupConfig | None] = field(default_factory=dict)
    quarantine: QuarantineConfig | None = None
    transforms: tuple[TransformConfig | None, ...] = ()
    routes: tuple[RouteConfig | None, ...] = ()
    sinks: tuple[SinkConfig | None, ...] = ()
    checkpoint: str | None = None
    columns: dict[Path, tuple[Column, ...] | None] = field(default_factory=dict)
    """The output of the decoder at each path; None if unknown or refused."""
