"""Builds a decoder from a `format:`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import config as cfg
from penstock.assembly.schemas import Place, Schemas, read_schema_file, registry_settings
from penstock.config.arrow_types import parse_columns
from penstock.decoders import JsonDecoder, KeyedDecoder, RawDecoder, RecordDecoder, TextDecoder, Tombstones


def build_decoder(
    flow: cfg.Flow, tombstones: Tombstones, topic: str | None, schemas: Schemas, frozen: bool
) -> RecordDecoder:
    """The decoder of a flow. `frozen`: the registry was unreachable, so tasks use only known schemas."""
    decode = flow.decode
    assert decode is not None, "a loaded pipeline has all its decoders"
    value = _DecoderBuilder(decode, flow.decode_path, topic, "value", tombstones, schemas, frozen).decoder()
    key = build_key(flow, topic, schemas, frozen)
    if key is None or isinstance(decode, cfg.RawDecodeConfig) or decode.key is None:
        return value
    return KeyedDecoder(value, key, decode.key.column)


def build_side_decoder(side: cfg.Side, topic: str | None, schemas: Schemas, frozen: bool) -> RecordDecoder:
    """The decoder of one of the sources that a flow joins."""
    flow = cfg.Flow((), side.topics, side.decode, side.decode_path, None, False, (), ())
    asked = getattr(side.decode, "tombstones", None)
    return build_decoder(flow, asked if asked in ("pass", "drop") else "quarantine", topic, schemas, frozen)


def build_key(flow: cfg.Flow, topic: str | None, schemas: Schemas, frozen: bool) -> RecordDecoder | None:
    """The key decoder of a flow, if the file has one."""
    key = getattr(flow.decode, "key", None)
    if key is None:
        return None
    return _DecoderBuilder(key, (*flow.decode_path, "key"), topic, "key", "pass", schemas, frozen).decoder()


@dataclass(frozen=True)
class _DecoderBuilder:
    """One decoder in the making."""

    decode: cfg.FormatConfig | cfg.KeyDecodeConfig
    place: Place
    topic: str | None
    suffix: str
    tombstones: Tombstones
    schemas: Schemas
    frozen: bool

    def decoder(self) -> RecordDecoder:
        decode = self.decode
        match decode:
            case cfg.RawDecodeConfig() | cfg.RawKeyConfig():
                return RawDecoder()
            case cfg.TextDecodeConfig():
                return TextDecoder(decode.column, tombstones=self.tombstones, max_bytes=decode.max_bytes)
            case cfg.TextKeyConfig():
                return TextDecoder(tombstones=self.tombstones, max_bytes=decode.max_bytes)
            case cfg.JsonDecodeConfig() | cfg.JsonKeyConfig():
                return self._json(decode)
            case cfg.AvroDecodeConfig() | cfg.AvroKeyConfig():
                return self._avro(decode)
            case cfg.ProtobufDecodeConfig() | cfg.ProtobufKeyConfig():
                return self._protobuf(decode)

    def _json(self, decode: cfg.JsonDecodeConfig | cfg.JsonKeyConfig) -> RecordDecoder:
        text = decode.columns or (_text(decode.schema_file) if decode.schema_file is not None else None)
        if text is not None or decode.registry is None:
            columns = parse_columns(text or "")
        else:
            from penstock.decoders.json.schema import json_schema_columns

            schema = self.schemas[self.place]
            columns = json_schema_columns(schema.text, schema.references)
        registry = registry_settings(decode.registry) if decode.registry is not None else None
        return JsonDecoder(
            columns,
            extra_fields=decode.extra_fields,
            extra_column=decode.extra_column,
            tombstones=self.tombstones,
            max_bytes=decode.max_bytes,
            framing="none" if registry is None else "confluent",
            registry=registry,
            subject=self._subject(decode),
            frozen=self.frozen,
        )

    def _avro(self, decode: cfg.AvroDecodeConfig | cfg.AvroKeyConfig) -> RecordDecoder:
        from penstock.decoders.avro import AvroDecoder, avro_reader

        reader = _text(decode.schema_file) if decode.schema_file is not None else avro_reader(self.schemas[self.place])
        registry = registry_settings(decode.registry) if decode.registry is not None else None
        return AvroDecoder(
            reader,
            registry,
            self._subject(decode),
            framing=decode.framing or ("none" if registry is None else "confluent"),
            writers=tuple(_text(file) for file in decode.writer_files),
            tombstones=self.tombstones,
            max_bytes=decode.max_bytes,
            frozen=self.frozen,
        )

    def _protobuf(self, decode: cfg.ProtobufDecodeConfig | cfg.ProtobufKeyConfig) -> RecordDecoder:
        from penstock.decoders.protobuf import ProtobufDecoder
        from penstock.registry.protobuf import protobuf_reader

        if decode.descriptor_file is not None:
            descriptors = read_schema_file(decode.descriptor_file)
        else:
            descriptors = protobuf_reader(self.schemas[self.place])
        registry = registry_settings(decode.registry) if decode.registry is not None else None
        return ProtobufDecoder(
            descriptors,
            decode.message,
            registry,
            self._subject(decode),
            framing="none" if registry is None else "confluent",
            tombstones=self.tombstones,
            max_bytes=decode.max_bytes,
            frozen=self.frozen,
        )

    def _subject(self, decode: cfg.RegisteredConfig) -> str | None:
        """The subject that the records' schemas must belong to."""
        if decode.registry is None or decode.other_subjects == "accept":
            return None
        return decode.subject or f"{self.topic}-{self.suffix}"


def _text(file: str) -> str:
    return read_schema_file(file).decode(errors="replace")
