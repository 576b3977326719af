"""Builds the sinks of a pipeline file and their inputs.

The libraries of a sink are loaded only if the file uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import config as cfg
from penstock.assembly.inlet import Inlet, SinkExpressions
from penstock.assembly.reaching import database_tls, settings_of, storage_of
from penstock.assembly.schemas import read_schema_file, registry_settings
from penstock.config.connections import SAME
from penstock.contracts import Sink
from penstock.kafka import KafkaSettings, read_security
from penstock.model import COMPUTED, DELETES, MergeRules, redrives_of
from penstock.quarantine import Quarantine, RefusingQuarantine
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.storage import Storage
from penstock.transforms.step import OnError

if TYPE_CHECKING:
    from penstock.quarantine.records import Held
    from penstock.sinks.kafka import ChosenTopics, Encoding

_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "client.", "socket.", "broker.address.")


@dataclass(frozen=True)
class Targets:
    """Every sink of a pipeline."""

    sinks: tuple[Sink, ...]
    quarantines: tuple[Sink, ...]
    gaps: Sink | None
    redriven: Callable[[], Sequence[Sink]] = tuple
    """The sinks where a replay can replace rows, under the name of the pipeline's redrives; created on demand."""


def targets_of(config: cfg.PipelineConfig) -> Targets:
    """The targets of a pipeline file, without the rest of the pipeline: no registry is queried."""
    return build_targets(config, settings_of(config.source))


def build_targets(config: cfg.PipelineConfig, source: KafkaSettings) -> Targets:
    """Make every sink."""
    return Targets(
        sinks=tuple(_sink(config, sink, source) for sink in config.sinks),
        quarantines=_quarantines(config, source) or (RefusingQuarantine(),),
        gaps=_gaps(config),
        redriven=partial(_redriven, config, source),
    )


def _redriven(config: cfg.PipelineConfig, source: KafkaSettings) -> Sequence[Sink]:
    named = config.model_copy(update={"name": redrives_of(config.name)})
    return [_sink(named, sink, source) for sink in config.sinks if sink.replaces and not sink.merges]


def build_inlets(
    configs: Sequence[cfg.SinkConfig], sinks: Sequence[Sink], on_error: OnError
) -> tuple[SinkExpressions | None, tuple[Inlet, ...]]:
    """The input of each sink, and the expressions to compute for it; equal ones only once."""
    names: dict[str, str] = {}

    def computed(expression: str) -> str:
        return names.setdefault(expression, f"{COMPUTED}{len(names)}")

    inlets = tuple(
        Inlet(
            sink,
            select=config.select,
            where=computed(config.where) if config.where is not None else None,
            computed={name: computed(text) for name, text in _expressions(config).items()},
        )
        for config, sink in zip(configs, sinks, strict=True)
    )
    columns = {name: expression for expression, name in names.items()}
    return (SinkExpressions(columns, on_error) if columns else None), inlets


def _expressions(sink: cfg.SinkConfig) -> dict[str, str]:
    """The further columns that a sink has computed."""
    if not isinstance(sink, cfg.KafkaSinkConfig):
        delete_when = getattr(sink, "delete_when", None)
        return {DELETES: delete_when} if delete_when is not None else {}
    parts: dict[str, object] = {"key": sink.key, "value": sink.value, "partition": sink.partition}
    if isinstance(sink.topic, cfg.TopicExpression):
        parts["topic"] = sink.topic.expr
    parts |= {f"header:{name}": text for name, text in sink.headers.items()}
    return {f"{COMPUTED}{part}": text for part, text in parts.items() if isinstance(text, str)}


def _sink(config: cfg.PipelineConfig, sink: cfg.SinkConfig, source: KafkaSettings) -> Sink:
    storage = storage_of(config)
    match sink:
        case cfg.DeltaSinkConfig():
            return _delta(config.name, sink, storage)
        case cfg.IcebergSinkConfig():
            return _iceberg(config.name, sink, storage)
        case cfg.KafkaSinkConfig():
            return _kafka(config, sink, source)
        case cfg.PostgresSinkConfig():
            return _postgres(config.name, sink)
        case cfg.ParquetSinkConfig() | cfg.JsonLinesSinkConfig():
            return _folder(config.name, sink, storage)


def _folder(pipeline: str, sink: cfg.ParquetSinkConfig | cfg.JsonLinesSinkConfig, storage: Storage) -> Sink:
    from penstock.sinks.jsonl import JsonLinesSink
    from penstock.sinks.parquet import ParquetSink

    make: Callable[..., Sink] = ParquetSink
    if isinstance(sink, cfg.JsonLinesSinkConfig):
        make = partial(JsonLinesSink, compression=sink.compression)
    return make(
        pipeline,
        sink.name,
        sink.path,
        partition_by=sink.partition_by or (),
        keep_coordinates=sink.coordinates,
        storage=storage,
    )


def _delta(pipeline: str, sink: cfg.DeltaSinkConfig, storage: Storage) -> Sink:
    rules = merge_rules(sink)
    make: Callable[..., Sink] = DeltaSink if rules is None else partial(DeltaMergeSink, rules=rules)
    return make(
        pipeline,
        sink.name,
        sink.path,
        partition_by=sink.partition_by or (),
        evolve=sink.evolve,
        keep_coordinates=sink.coordinates,
        storage=storage,
        target_file_bytes=sink.target_file_bytes,
        cluster_by=sink.cluster_by,
    )


def _iceberg(pipeline: str, sink: cfg.IcebergSinkConfig, storage: Storage) -> Sink:
    from penstock.sinks.iceberg import IcebergSink, open_catalog

    return IcebergSink(
        pipeline,
        sink.name,
        sink.table,
        sink.warehouse,
        catalog=open_catalog(sink.catalog, sink.warehouse, storage),
        rules=merge_rules(sink),
        partition_by=sink.partition_by or (),
        evolve=sink.evolve,
        keep_coordinates=sink.coordinates,
        storage=storage,
        target_file_bytes=sink.target_file_bytes,
        cluster_by=sink.cluster_by,
    )


def _kafka(config: cfg.PipelineConfig, sink: cfg.KafkaSinkConfig, source: KafkaSettings) -> Sink:
    from penstock.sinks.kafka import KafkaAtLeastOnceSink, KafkaSink

    records: dict[str, Any] = {
        "topic": sink.topic if isinstance(sink.topic, str) else None,
        "create": sink.create,
        "chosen": _chosen_topics(config, sink),
        "keep_coordinates": sink.coordinates,
        "encode_value": _encoding(sink.value),
        "encode_key": _encoding(sink.key),
    }
    settings = _producing(sink, source)
    if sink.guarantee == "at_least_once":
        return KafkaAtLeastOnceSink(config.name, sink.name, settings, **records)
    return KafkaSink(
        config.name,
        sink.name,
        settings,
        slots=1 if sink.atomicity == "batch" else sink.slots,
        transaction_timeout=sink.transaction_timeout,
        partitions=sink.partitions,
        **records,
    )


def _chosen_topics(config: cfg.PipelineConfig, sink: cfg.KafkaSinkConfig) -> ChosenTopics:
    """What rows may name: never a topic that the pipeline reads, which would have no end, nor its quarantine's."""
    from penstock.sinks.kafka import ChosenTopics

    own: list[str] = []
    if sink.brokers in (None, config.source.brokers):
        for source in (config.source, *config.sources.values()):
            own += [re.escape(topic) for topic in source.named_topics or ()]
            own += [source.pattern] if source.pattern is not None else []
        if config.quarantine is not None and config.quarantine.topic is not None:
            own.append(re.escape(config.quarantine.topic))
    return ChosenTopics(sink.topics_allowed, tuple(dict.fromkeys(own)), sink.max_topics)


def _encoding(asked: str | cfg.EncodeConfig | None) -> Encoding | None:
    if not isinstance(asked, cfg.EncodeConfig):
        return None
    from penstock.sinks.kafka import Encoding

    return Encoding(
        asked.format,
        registry_settings(asked.registry),
        asked.subject,
        asked.register_schema,
        read_schema_file(asked.schema_file).decode(errors="replace") if asked.schema_file is not None else None,
        asked.message,
        asked.columns if isinstance(asked, cfg.KeyEncodeConfig) else None,
    )


def _postgres(pipeline: str, sink: cfg.PostgresSinkConfig) -> Sink:
    from penstock.sinks.postgres import PostgresSink

    return PostgresSink(
        pipeline,
        sink.name,
        sink.url.get_secret_value(),
        sink.table,
        tls=database_tls(sink.security, f"sink {sink.name}: security"),
        rules=merge_rules(sink),
        create=sink.create,
        evolve=sink.evolve,
        on_reject=sink.on_reject,
        keep_coordinates=sink.coordinates,
    )


def merge_rules(sink: cfg.SinkConfig) -> MergeRules | None:
    """How the rows of a sink meet those that are there; none for one that appends."""
    if not sink.merges or not isinstance(sink, cfg.MergingConfig):
        return None
    prune_by = sink.prune_by if isinstance(sink, cfg.MergingTableConfig) else ()
    return MergeRules(tuple(sink.keys or ()), sink.when_newer, sink.insert_only, prune_by=tuple(prune_by))


def way_in(source: KafkaSettings) -> KafkaSettings:
    """The connection settings of the source cluster, without other reader settings."""
    options = {k: v for k, v in source.options.items() if k.startswith(_SECURITY)}
    return KafkaSettings(source.brokers, options, source.security)


def _producing(sink: cfg.KafkaSinkConfig, source: KafkaSettings) -> KafkaSettings:
    """The producer settings; on the source cluster, with the source's authentication."""
    options = cfg.reveal(sink.options)
    security = read_security(sink.security, f"sink {sink.name}: security")
    if sink.brokers in (None, source.brokers):
        shared = way_in(source)
        own = security is not None
        options = {**{k: v for k, v in shared.options.items() if not (own and k in SAME)}, **options}
        security = security or shared.security
    return KafkaSettings(sink.brokers or source.brokers, options, security)


def _quarantines(config: cfg.PipelineConfig, source: KafkaSettings) -> tuple[Sink, ...]:
    """A quarantine for the table and one for the topic, as far as the file names them."""
    quarantine, found = config.quarantine, []
    one_sink, storage = len(config.sinks) == 1, storage_of(config)
    if quarantine is not None and quarantine.table is not None:
        table = DeltaSink(config.name, "quarantine", quarantine.table, keep_coordinates=False, storage=storage)
        held = partial(_held_in_table, quarantine.table, storage)
        found.append(Quarantine(table, config.name, held, one_sink=one_sink))
    if quarantine is not None and quarantine.topic is not None:
        from penstock.sinks.kafka import QuarantineTopic

        topic = QuarantineTopic(
            config.name,
            "quarantine.topic",
            way_in(source),
            f"{config.checkpoint.rstrip('/')}/penstock-staged/quarantine.topic",
            topic=quarantine.topic,
            storage=storage,
        )
        held = partial(_held_in_topic, quarantine.topic, way_in(source))
        found.append(Quarantine(topic, config.name, held, one_sink=one_sink))
    return tuple(found)


def _held_in_table(path: str, storage: Storage) -> Held:
    from penstock.quarantine.records import HeldInTable

    return HeldInTable(path, storage=storage)


def _held_in_topic(topic: str, settings: KafkaSettings) -> Held:
    from penstock.quarantine.records import HeldInTopic
    from penstock.readers import KafkaReader

    return HeldInTopic(topic, settings, KafkaReader(settings))


def _gaps(config: cfg.PipelineConfig) -> Sink | None:
    if config.source.on_data_loss == "fail":
        return None
    assert config.quarantine is not None and config.quarantine.table is not None
    path = f"{config.quarantine.table}_gaps"
    return DeltaSink(config.name, "gaps", path, keep_coordinates=False, storage=storage_of(config))
