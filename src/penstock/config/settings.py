"""Client and Spark settings: those that Penstock sets itself are refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.parts import Parts
from penstock.config.problems import Path
from penstock.config.sinks import KafkaSinkConfig

_CONSUMER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "group.id": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.commit": "progress is kept in the checkpoint, not in a consumer group",
    "auto.commit.interval.ms": "progress is kept in the checkpoint, not in a consumer group",
    "enable.auto.offset.store": "progress is kept in the checkpoint, not in a consumer group",
    "auto.offset.reset": "it is start, and for lost data on_data_loss",
    "isolation.level": "only committed records are read, always",
    "enable.partition.eof": "the end of a batch is known from its offsets",
    "key.deserializer": "the bytes are decoded by decode",
    "value.deserializer": "the bytes are decoded by decode",
}
_PRODUCER = {
    "bootstrap.servers": "it is brokers",
    "metadata.broker.list": "it is brokers",
    "transactional.id": "it identifies the slot that writes",
    "enable.idempotence": "a transaction needs it on",
    "acks": "a transaction needs all",
    "key.serializer": "the value is the row as JSON",
    "value.serializer": "the value is the row as JSON",
}
_SPARK = {
    "spark.sql.session.timeZone": "times are in UTC in both lanes",
    "spark.sql.ansi.enabled": "both lanes follow the ANSI rules",
    "spark.sql.streaming.checkpointLocation": "it is checkpoint",
    "spark.app.name": "it is name",
    "spark.submit.deployMode": "it is the option --deploy-mode of penstock submit",
}


def check_settings(parts: Parts) -> None:
    """Report client settings and Spark settings that a pipeline file cannot have."""
    for name, source in parts.sources.items():
        if source is not None:
            _check_client(parts, ("sources", name, "options"), source.options, _CONSUMER)
    if parts.source and not parts.sources:
        _check_client(parts, ("source", "options"), parts.source.options, _CONSUMER)
    for index, sink in enumerate(parts.sinks):
        if isinstance(sink, KafkaSinkConfig):
            _check_client(parts, ("sinks", index, "options"), sink.options, _PRODUCER)
    for name in parts.spark or ():
        if not name.startswith("spark."):
            hint = f'did you mean "spark.{name}"?'
            parts.report(
                ("spark", name),
                f'"{name}" is no Spark setting: they start with spark.',
                hint=hint,
                at_key=True,
            )
        elif name in _SPARK:
            parts.report(("spark", name), f"{name} is set by Penstock: {_SPARK[name]}", hint="remove it", at_key=True)


def _check_client(parts: Parts, path: Path, options: Iterable[str], owned: dict[str, str]) -> None:
    for name in options:
        plain = name.removeprefix("kafka.")
        if plain in owned:
            message = f"{plain} is set by Penstock: {owned[plain]}"
            parts.report((*path, name), message, hint="remove it", at_key=True)
        elif plain != name:
            parts.report(
                (*path, name),
                "options are written without the kafka. prefix",
                hint=f"write {plain}",
                at_key=True,
            )
