"""What has to hold of the decoders: where their columns come from, and the settings that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.config.columns import Column
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
from penstock.config.flows import flows, only_topic
from penstock.config.parts import Parts
from penstock.config.problems import Path, did_you_mean, suggest


def check_decode(parts: Parts) -> None:
    """Report everything that is wrong with the decoders."""
    _check_topics(parts)
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


def _check_topics(parts: Parts) -> None:
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
