"""Checks of what a pipeline reads: its sources, the decoders with their schemas, and the tables that rows are joined
with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from penstock.config.ddl import Column, ColumnsError, read_columns
from penstock.config.decode import (
    AvroDecodeConfig,
    AvroKeyConfig,
    ByTopicDecodeConfig,
    FormatConfig,
    JsonDecodeConfig,
    JsonKeyConfig,
    KeyDecodeConfig,
    ProtobufDecodeConfig,
    ProtobufKeyConfig,
    RawDecodeConfig,
)
from penstock.config.everyday import EnrichConfig
from penstock.config.expressions import ExpressionError, read_query
from penstock.config.fields import show_duration
from penstock.config.flows import flows, only_topic
from penstock.config.parts import Parts
from penstock.config.pipeline import NamedSourceConfig
from penstock.config.problems import Path, did_you_mean, suggest
from penstock.config.tables import CsvTableConfig, JsonTableConfig
from penstock.config.transforms import SqlConfig, TransformConfig


def check_decode(parts: Parts) -> None:
    """Report everything that is wrong with the decoders."""
    _check_by_topic(parts)
    for decode, path in _decoders(parts):
        _check_format(parts, decode, path)
        if isinstance(decode, RawDecodeConfig):
            continue
        if decode.key is not None:
            _check_format(parts, decode.key, (*path, "key"))
        columns = parts.columns.get(path)
        if columns is not None:
            _check_key_column(parts, decode.key, path, columns)
        if isinstance(decode, JsonDecodeConfig) and columns is not None:
            _check_json(parts, decode, path, columns)
    for flow in flows(parts):
        for shared, path, topics in flow.decoders:
            _check_subject(parts, shared, path, only_topic(topics, parts.source))


def _decoders(parts: Parts) -> Iterator[tuple[FormatConfig, Path]]:
    if parts.sources:
        for name, source in parts.sources.items():
            if source is not None:
                yield source.decode, ("sources", name, "decode")
    elif isinstance(parts.decode, ByTopicDecodeConfig):
        for topic, decode in parts.decode.by_topic.items():
            yield decode, ("decode", "by_topic", topic)
    elif parts.decode is not None:
        yield parts.decode, ("decode",)


def _check_by_topic(parts: Parts) -> None:
    decode, source = parts.decode, parts.source
    if parts.sources or not isinstance(decode, ByTopicDecodeConfig) or source is None:
        return
    if source.pattern is not None:
        message = "by_topic needs the topics by name, and the source has a pattern"
        parts.report(("decode", "by_topic"), message, hint="list them as source.topics", at_key=True)
        return
    topics = source.topics or tuple(source.assign or ())
    given = set(decode.by_topic)
    for topic in decode.by_topic:
        if topic not in topics:
            message, context = f'topic "{topic}" is not read by this pipeline', [f"topics: {', '.join(topics)}"]
            hint = did_you_mean(topic, topics)
            parts.report(("decode", "by_topic", topic), message, context=context, hint=hint, at_key=True)
            given.add(suggest(topic, topics) or topic)
    if missing := [topic for topic in topics if topic not in given]:
        message = f"no decoder for {', '.join(missing)}"
        parts.report(("decode", "by_topic"), message, hint="each topic of the source needs one", at_key=True)


def _check_format(parts: Parts, decode: FormatConfig | KeyDecodeConfig, path: Path) -> None:
    if isinstance(decode, JsonDecodeConfig | JsonKeyConfig):
        if parts.written(*path, "registry"):
            parts.at_most_one(path, ("schema", "schema_file"))
        else:
            parts.exactly_one(path, ("schema", "schema_file"))
    elif isinstance(decode, AvroDecodeConfig | AvroKeyConfig):
        parts.one_needed(path, ("registry", "schema_file"))
        _check_framing(parts, decode, path)
    elif isinstance(decode, ProtobufDecodeConfig | ProtobufKeyConfig):
        parts.one_needed(path, ("registry", "descriptor_file"))
    _check_registered(parts, path)


def _check_framing(parts: Parts, decode: AvroDecodeConfig | AvroKeyConfig, path: Path) -> None:
    if decode.framing == "confluent" and decode.registry is None:
        message = "framing confluent carries the schema ids of a registry, and none is given"
        parts.report((*path, "framing"), message, hint="add registry: {url: ...}")
    elif decode.framing in ("none", "single_object") and decode.registry is not None:
        message = f"framing {decode.framing} carries no schema id, so the registry means nothing"
        parts.report((*path, "framing"), message, hint="remove registry or framing")
    if decode.writer_files and decode.framing != "single_object":
        message = "writer_files are told apart by their fingerprints, which only framing single_object has"
        parts.report((*path, "writer_files"), message, hint="write framing: single_object", at_key=True)


def _check_registered(parts: Parts, path: Path) -> None:
    """Settings about subjects mean nothing without a registry."""
    for setting in ("subject", "version", "other_subjects"):
        if parts.written(*path, setting) and not parts.written(*path, "registry"):
            message = f"{setting} means nothing without a registry"
            hint = f"add registry: {{url: ...}}, or remove {setting}"
            parts.report((*path, setting), message, hint=hint, at_key=True)
    own = next((key for key in ("schema", "schema_file", "descriptor_file") if parts.written(*path, key)), None)
    if own is not None and parts.written(*path, "version") and parts.written(*path, "registry"):
        message = f"version means nothing with {own}, which gives the columns"
        parts.report((*path, "version"), message, hint=f"remove version or {own}", at_key=True)


def _check_subject(parts: Parts, decode: FormatConfig | None, path: Path, topic: str | None) -> None:
    """The subject is made from the topic's name, where there is just one."""
    if topic is not None or decode is None or isinstance(decode, RawDecodeConfig):
        return
    for one, at in ((decode, path), (decode.key, (*path, "key"))):
        if getattr(one, "registry", None) is not None and getattr(one, "subject", None) is None:
            message = "several topics share this decoder, so the subject cannot be made from the topic's name"
            own = "a route of its own" if "by_topic" in path else "a decoder of its own: by_topic"
            parts.report(at, message, hint=f"add subject: ..., or give each topic {own}", at_key=True)


def _check_key_column(parts: Parts, key: KeyDecodeConfig | None, path: Path, columns: Sequence[Column]) -> None:
    if key is None:
        return
    if sum(column.name.lower() == key.column.lower() for column in columns) > 1:
        message = f'the schema has a column "{key.column}" already'
        parts.report((*path, "key"), message, hint="give the key's column another name: column: ...", at_key=True)


def _check_json(parts: Parts, decode: JsonDecodeConfig, path: Path, columns: Sequence[Column]) -> None:
    required = [column.name for column in columns if not column.nullable]
    if decode.tombstones == "pass" and required:
        parts.report(
            (*path, "tombstones"),
            "a tombstone passes as a row of nulls, but some columns are NOT NULL",
            context=[f"NOT NULL: {', '.join(required)}"],
            hint="remove NOT NULL, or use tombstones: drop or quarantine",
        )
    if decode.extra_fields == "keep":
        taken = sum(column.name.lower() == decode.extra_column.lower() for column in columns)
        if taken > 1:
            message = f'the schema has a column "{decode.extra_column}" already'
            key = "extra_column" if parts.written(*path, "extra_column") else "extra_fields"
            parts.report((*path, key), message, hint="choose another extra_column")


def check_tables(parts: Parts) -> None:
    """Report everything that is wrong with the tables and their names in the steps."""
    for name, table in parts.tables.items():
        if name.lower() == "input":
            message = '"input" is the name of the rows themselves'
            parts.report(("tables", name), message, hint="give the table another name", at_key=True)
        if isinstance(table, CsvTableConfig | JsonTableConfig):
            try:
                read_columns(table.columns)
            except ColumnsError as error:
                parts.report(("tables", name, "schema"), error.message, offset=error.offset, hint=error.hint)
    for step, path in _steps(parts):
        if isinstance(step, EnrichConfig):
            _known(parts, step.enrich.table, (*path, "enrich", "table"))
            _check_columns(parts, step, (*path, "enrich"))
        elif isinstance(step, SqlConfig):
            try:
                named = read_query(step.sql).tables
            except ExpressionError:
                continue
            for name in named:
                at = re.search(rf"\b{re.escape(name)}\b", step.sql)
                _known(parts, name, (*path, "sql"), fold=True, offset=at.start() if at else None)


def _known(parts: Parts, name: str, path: Path, *, fold: bool = False, offset: int | None = None) -> None:
    names = list(parts.tables)
    if name in names or (fold and name.lower() in map(str.lower, names)) or ("tables",) in parts.file.broken:
        return
    context = [f"tables: {', '.join(names) or 'none'}"]
    hint = did_you_mean(name, names) or "describe it under tables:"
    parts.report(path, f'there is no table "{name}"', context=context, hint=hint, offset=offset)


def _check_columns(parts: Parts, step: EnrichConfig, path: Path) -> None:
    """Where the file itself says what columns a table has."""
    table = parts.tables.get(step.enrich.table)
    if not isinstance(table, CsvTableConfig | JsonTableConfig):
        return
    try:
        columns = [column.name for column in read_columns(table.columns)]
    except ColumnsError:
        return
    for key, wanted in (("on", step.enrich.on), ("take", step.enrich.take or {})):
        for column in wanted.values():
            if column not in columns:
                context = [f"columns of {step.enrich.table}: {', '.join(columns)}"]
                message = f'table {step.enrich.table} has no column "{column}"'
                parts.report((*path, key), message, context=context, hint=did_you_mean(column, columns), at_key=True)


def _steps(parts: Parts) -> Iterator[tuple[TransformConfig, Path]]:
    for flow in flows(parts):
        for side in flow.sides:
            for index, step in enumerate(side.transforms):
                yield step, (*side.path, "transforms", index)
        for index, own in enumerate(flow.transforms):
            if own is not None:
                yield own, (*flow.path, "transforms", index)


_SELECTION = ("topics", "pattern", "assign")
_SHARED = ("brokers", "security", "options", "on_data_loss", "group")


def check_source(parts: Parts) -> None:
    """Report everything that is wrong with the source, or with the sources."""
    _check_flow(parts)
    if parts.written("sources"):
        _check_sources(parts)
        return
    for part in ("source", "decode"):
        if part not in parts.file.data:
            parts.report((part,), "this key is required and missing")
    if isinstance(parts.file.data.get("source"), dict):
        parts.exactly_one(("source",), _SELECTION)
    source = parts.source
    if source is None:
        return
    if source.min_offsets and source.max_offsets and source.min_offsets > source.max_offsets:
        message = f"min_offsets {source.min_offsets:,} is more than max_offsets {source.max_offsets:,}"
        parts.report(("source", "min_offsets"), message)
    parts.need_pairs(("source",), (("max_delay", "min_offsets"), ("min_offsets", "max_delay")))
    _check_topics(parts)
    if source.on_data_loss == "record" and not parts.written("quarantine", "table"):
        parts.report(
            ("source", "on_data_loss"),
            "record writes the gaps beside the quarantine table, and there is none",
            hint="add quarantine: {table: ...}",
        )


def _check_flow(parts: Parts) -> None:
    flow = parts.flow
    if flow is None:
        return
    names = [("source",), *(("sources", name) for name in parts.sources)]
    fixed = next((name for name in names if parts.written(*name, "max_offsets")), None)
    if parts.written("flow") and fixed is not None:
        parts.report(
            ("flow",),
            f"there is a fixed cap: {'.'.join(fixed)}.max_offsets",
            hint="leave one of them out; flow.max_offsets bounds what flow control finds",
            at_key=True,
        )
    if flow.target_batch > flow.max_batch:
        target, most = show_duration(flow.target_batch), show_duration(flow.max_batch)
        here = ("flow", "target_batch" if parts.written("flow", "target_batch") else "max_batch")
        parts.report(here, f"target_batch {target} is longer than max_batch {most}")
    if flow.max_offsets is not None and flow.min_offsets > flow.max_offsets:
        message = f"min_offsets {flow.min_offsets:,} is more than max_offsets {flow.max_offsets:,}"
        parts.report(("flow", "min_offsets" if parts.written("flow", "min_offsets") else "max_offsets"), message)


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


def _check_sources(parts: Parts) -> None:
    for part in ("source", "decode", "routes"):
        if parts.written(part):
            where = "each of the sources has its own" if part == "decode" else "sources takes its place"
            parts.report((part,), f"{part} and sources exclude each other: {where}", hint=f"remove {part}", at_key=True)
    if isinstance(parts.file.data.get("sources"), dict) and len(parts.sources) != 2:
        count = len(parts.sources)
        message = f"sources are for a join of two, and there {'is' if count == 1 else 'are'} {count}"
        hint = (
            "one is written as source: and decode:"
            if count < 2
            else "write the join of two to a topic, and join that with the third"
        )
        parts.report(("sources",), message, hint=hint, at_key=True)
    first: tuple[str, NamedSourceConfig] | None = None
    topics: dict[str, str] = {}
    for name, source in parts.sources.items():
        if source is None:
            continue
        path: Path = ("sources", name)
        if source.topics is None:
            parts.report(
                path, "a source that is joined needs its topics by name", hint="write topics: [...]", at_key=True
            )
        for index, topic in enumerate(source.topics or ()):
            if topic in topics:
                message = f'topic "{topic}" is read by {topics[topic]} already'
                parts.report((*path, "topics", index), message, hint="copy it to a second topic, or read it once")
            topics[topic] = f"source {name}"
        if first is None:
            first = (name, source)
            continue
        for key in _SHARED:
            if getattr(source, key) != getattr(first[1], key):
                message = (
                    f"not the same as in source {first[0]}: the sources of a join share one cluster and its settings"
                )
                parts.report((*path, key), message, hint=f"write the same {key} in both", at_key=True)
        both = (source.start, first[1].start)
        if both[0] != both[1] and not all(isinstance(start, dict) for start in both):
            message = f"not the same as in source {first[0]}"
            parts.report((*path, "start"), message, hint="write the same start, or offsets for both", at_key=True)
