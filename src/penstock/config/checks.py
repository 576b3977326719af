"""What has to hold between the parts of a file: settings that need or exclude each other, columns, names."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.columns import Column
from penstock.config.decode import AvroDecodeConfig, JsonDecodeConfig, ProtobufDecodeConfig
from penstock.config.locations import check_locations
from penstock.config.parts import Parts
from penstock.config.problems import Path, did_you_mean
from penstock.config.secrets import check_secrets
from penstock.config.settings import check_settings
from penstock.config.sink_checks import check_no_loop, check_sinks
from penstock.config.stages import follow
from penstock.config.transforms import SqlConfig

_SELECTION = ("topics", "pattern", "assign")


def check(parts: Parts) -> None:
    """Report everything that is wrong between the parts."""
    _check_source(parts)
    _check_decode(parts)
    _check_quarantine(parts)
    _check_trigger(parts)
    _check_lane(parts)
    _, known = follow(parts.columns, parts.transforms, parts.report)
    check_sinks(parts, known)
    check_settings(parts)
    check_secrets(parts)
    check_locations(parts)


def _exactly_one(parts: Parts, where: str, keys: Sequence[str]) -> None:
    lines = parts.file.positions.keys
    given = sorted((key for key in keys if parts.written(where, key)), key=lambda key: lines[where, key].line)
    choice = f"{', '.join(keys[:-1])} and {keys[-1]}"
    if not given:
        parts.report((where,), f"one of {choice} is needed", at_key=True)
    elif len(given) > 1:
        message = f"only one of {choice} can be given; {given[0]} is there at line {lines[where, given[0]].line}"
        parts.report((where, given[1]), message, hint=f"remove {' or '.join(given)}", at_key=True)


def _check_source(parts: Parts) -> None:
    if isinstance(parts.file.data.get("source"), dict):
        _exactly_one(parts, "source", _SELECTION)
    source = parts.source
    if source is None:
        return
    if source.min_offsets and source.max_offsets and source.min_offsets > source.max_offsets:
        message = f"min_offsets {source.min_offsets:,} is more than max_offsets {source.max_offsets:,}"
        parts.report(("source", "min_offsets"), message)
    for one, other in (("max_delay", "min_offsets"), ("min_offsets", "max_delay")):
        if parts.written("source", one) and not parts.written("source", other):
            parts.report(("source", one), f"{one} means nothing without {other}", hint=f"add {other}", at_key=True)
    _check_topics(parts)
    if source.on_data_loss == "record" and not parts.written("quarantine", "table"):
        parts.report(
            ("source", "on_data_loss"),
            "record writes the gaps beside the quarantine table, and there is none",
            hint="add quarantine: {table: ...}",
        )


def _check_topics(parts: Parts) -> None:
    source = parts.source
    if source is None:
        return
    for index, topic in enumerate(source.topics or ()):
        if topic in (source.topics or ())[:index]:
            parts.report(("source", "topics", index), f'topic "{topic}" is here twice')
    topics = source.topics or tuple(source.assign or ())
    if not isinstance(source.start, dict) or not topics:
        return
    for topic, offsets in source.start.items():
        here: Path = ("source", "start", topic)
        if topic not in topics:
            context = [f"topics: {', '.join(topics)}"]
            message = f'topic "{topic}" is not read by this pipeline'
            parts.report(here, message, context=context, hint=did_you_mean(topic, topics), at_key=True)
        elif source.assign:
            for partition in offsets:
                if int(partition) not in source.assign[topic]:
                    message = f"partition {partition} of {topic} is not assigned"
                    parts.report((*here, partition), message, at_key=True)


def _check_decode(parts: Parts) -> None:
    decode = parts.decode
    if isinstance(decode, JsonDecodeConfig):
        _exactly_one(parts, "decode", ("schema", "schema_file"))
    elif isinstance(decode, AvroDecodeConfig):
        _exactly_one(parts, "decode", ("registry", "schema_file"))
    elif isinstance(decode, ProtobufDecodeConfig):
        _exactly_one(parts, "decode", ("registry", "descriptor_file"))
    if not isinstance(decode, JsonDecodeConfig) or parts.columns is None:
        return
    required = [column.name for column in parts.columns if not column.nullable]
    if decode.tombstones == "pass" and required:
        parts.report(
            ("decode", "tombstones"),
            "a tombstone passes as a row of nulls, but some columns are NOT NULL",
            context=[f"NOT NULL: {', '.join(required)}"],
            hint="remove NOT NULL, or use tombstones: drop or quarantine",
        )
    if decode.extra_fields == "keep":
        _check_extra_column(parts, decode, parts.columns[:-1])


def _check_extra_column(parts: Parts, decode: JsonDecodeConfig, columns: Sequence[Column]) -> None:
    if any(column.name.lower() == decode.extra_column.lower() for column in columns):
        message = f'the schema has a column "{decode.extra_column}" already'
        key = "extra_column" if parts.written("decode", "extra_column") else "extra_fields"
        parts.report(("decode", key), message, hint="choose another extra_column")


def _check_quarantine(parts: Parts) -> None:
    if parts.quarantine and parts.quarantine.topic:
        check_no_loop(parts, ("quarantine", "topic"), parts.quarantine.topic)
    if parts.quarantine is None or parts.written("quarantine", "table") or parts.written("quarantine", "topic"):
        return
    parts.report(("quarantine",), "neither table nor topic is given", hint="add one of them", at_key=True)


def _check_trigger(parts: Parts) -> None:
    if parts.trigger and parts.trigger.available_now and parts.written("trigger", "every"):
        parts.report(
            ("trigger", "every"),
            "every and available_now exclude each other",
            hint="every keeps running; available_now reads what is there and stops",
            at_key=True,
        )


def _check_lane(parts: Parts) -> None:
    for index, transform in enumerate(parts.transforms):
        if isinstance(transform, SqlConfig) and parts.file.data.get("lane") == "direct":
            message = f"the direct lane cannot run sql, which transforms[{index}] is"
            parts.report(("lane",), message, hint="remove lane, or write lane: frame")
            return
