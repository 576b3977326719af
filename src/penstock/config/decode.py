"""How the bytes of a record become columns: the value and, optionally, the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from penstock.config.connections import RegistryConfig
from penstock.config.ddl import Column, ColumnType, read_columns
from penstock.config.fields import COORDINATES, Location, Section, Size, Text, wrong
from penstock.config.source import Topic
from penstock.config.yaml_source import Given

MAP_OF_TEXT = ColumnType("MAP", items=(ColumnType("STRING"), ColumnType("STRING")))
TEN_MIB = 10 * 1024 * 1024

Tombstones = Literal["quarantine", "pass", "drop", "delete"]


def _check_new_column(name: str) -> str:
    if name == COORDINATES:
        raise wrong(f'"{COORDINATES}" is reserved for the coordinates; choose another name')
    return name


def _check_version(version: Any) -> Any:
    if version == "latest" or (isinstance(version, int) and not isinstance(version, bool) and version >= 1):
        return version
    if isinstance(version, str) and version.isdecimal():
        raise PydanticCustomError("int_type", "a number in quotes")
    raise wrong("a version is latest or a number of at least 1")


NewColumn = Annotated[Text, AfterValidator(_check_new_column)]


class _Registered(Section):
    """By a registry: the records carry the ids of their schemas."""

    registry: RegistryConfig | None = Field(default=None, description="The registry of the schema IDs in the records.")
    subject: Text | None = Field(
        default=None,
        description="The subject that defines the columns; schema IDs of records must belong to it. Defaults to "
        "the topic name with `-value`, or `-key` for the key.",
    )
    version: Annotated[Literal["latest"] | int, BeforeValidator(_check_version)] = Field(
        default="latest",
        description="The subject version that defines the columns: `latest` follows the registry while the "
        "pipeline runs, a number is fixed.",
    )
    other_subjects: Literal["quarantine", "accept"] = Field(
        default="quarantine", description="What to do with a record whose schema ID belongs only to another subject."
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Settings about subjects need a registry."""
        super().check_keys(given)
        for setting in ("subject", "version", "other_subjects"):
            if setting in given and "registry" not in given:
                hint = f"add registry: {{url: ...}}, or remove {setting}"
                given.report(setting, f"{setting} has no effect without a registry", hint)
        own = next((key for key in ("schema", "schema_file", "descriptor_file") if key in given), None)
        if own is not None and "version" in given and "registry" in given:
            message = f"version has no effect with {own}, which defines the columns"
            given.report("version", message, f"remove version or {own}")


class _JsonFormat(_Registered):
    """What JSON has for values and keys."""

    columns: Text | None = Field(
        default=None,
        alias="schema",
        description="The columns in Spark SQL syntax: `order_id BIGINT NOT NULL, amount DOUBLE`.",
    )
    schema_file: Location | None = Field(default=None, description="A file with the columns, instead of `schema`.")
    extra_fields: Literal["ignore", "keep", "quarantine"] = Field(
        default="ignore",
        description="Fields that are not in the schema: `ignore` them, `keep` them in a map column, or "
        "`quarantine` the record.",
    )
    extra_column: NewColumn = Field(
        default="_extra",
        description="The MAP<STRING, STRING> column for `extra_fields: keep`, each value as JSON text.",
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """The columns come from one place."""
        super().check_keys(given)
        given.at_most_one(("schema", "schema_file"))
        if "registry" not in given:
            given.at_least_one(("schema", "schema_file"))

    @property
    def own_columns(self) -> tuple[Column, ...] | None:
        """The columns that the file gives. Raises `ColumnsError`."""
        if self.columns is None:
            return None
        extra = (Column(self.extra_column, MAP_OF_TEXT),) if self.extra_fields == "keep" else ()
        return (*read_columns(self.columns), *extra)


class _AvroFormat(_Registered):
    """What Avro has for values and keys."""

    schema_file: Location | None = Field(
        default=None,
        description="An Avro schema (.avsc) that defines the columns. Without a registry, it is also the "
        "writer schema of every record.",
    )
    framing: Literal["confluent", "none", "single_object"] | None = Field(
        default=None,
        description="The prefix of the data: `confluent` (a zero byte and a schema ID), `single_object` (Avro's "
        "marker and fingerprint) or `none`. Defaults to `confluent` with a registry, else `none`.",
    )
    writer_files: Annotated[tuple[Location, ...], Field(strict=False)] = Field(
        default=(), description="For `framing: single_object`: older writer schemas of the records."
    )

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Something gives the columns."""
        super().check_keys(given)
        given.at_least_one(("registry", "schema_file"))

    def check_values(self, given: Given) -> None:
        """The framing and the source of the schemas go together."""
        if self.framing == "confluent" and self.registry is None:
            message = "framing confluent carries schema ids of a registry, but no registry is given"
            given.report("framing", message, "add registry: {url: ...}", at_key=False)
        elif self.framing in ("none", "single_object") and self.registry is not None:
            message = f"framing {self.framing} carries no schema id, so the registry has no effect"
            given.report("framing", message, "remove registry or framing", at_key=False)
        if self.writer_files and self.framing != "single_object":
            message = "writer_files are identified by fingerprint, which only framing single_object carries"
            given.report("writer_files", message, "write framing: single_object")


class _ProtobufFormat(_Registered):
    """What Protobuf has for values and keys."""

    descriptor_file: Location | None = Field(
        default=None, description="A compiled descriptor set including imports (`protoc --include_imports -o`)."
    )
    message: Text = Field(description="The full name of the message.", examples=["shop.Order"])

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Something gives the message."""
        super().check_keys(given)
        given.at_least_one(("registry", "descriptor_file"))


class _Key(Section):
    """What every key has."""

    column: NewColumn = Field(default="key", description="The column for the key.")
    max_bytes: Size = Field(
        default=TEN_MIB, description="The maximum key size; records with a larger key go to quarantine."
    )


class TextKeyConfig(_Key):
    """The key as UTF-8 text. A record whose key is not UTF-8 is a bad record."""

    format: Literal["text"] = Field(default="text", description="The format of the key.")


class RawKeyConfig(_Key):
    """The key's bytes as they are."""

    format: Literal["raw"] = Field(description="The format of the key.")


class JsonKeyConfig(_Key, _JsonFormat):
    """A JSON object, as a struct."""

    format: Literal["json"] = Field(description="The format of the key.")


class AvroKeyConfig(_Key, _AvroFormat):
    """Avro: a record as a struct, anything else as the type it is."""

    format: Literal["avro"] = Field(description="The format of the key.")


class ProtobufKeyConfig(_Key, _ProtobufFormat):
    """A Protobuf message, as a struct."""

    format: Literal["protobuf"] = Field(description="The format of the key.")


def _format_of(item: Any) -> str | None:
    found = getattr(item, "format", None) if isinstance(item, BaseModel) else None
    if isinstance(item, dict):
        found = item.get("format")
    return None if found is None else str(found)


def _format_or_text(item: Any) -> str:
    return _format_of(item) or "text"


KeyDecodeConfig = Annotated[
    Annotated[TextKeyConfig, Tag("text")]
    | Annotated[RawKeyConfig, Tag("raw")]
    | Annotated[JsonKeyConfig, Tag("json")]
    | Annotated[AvroKeyConfig, Tag("avro")]
    | Annotated[ProtobufKeyConfig, Tag("protobuf")],
    Discriminator(_format_or_text),
]


class _Keyed(Section):
    """A value whose key may be decoded too."""

    key: KeyDecodeConfig | None = Field(
        default=None,
        description="Also decode the record key into one column; `{}` reads it as text. If omitted, there is no key "
        "column.",
    )


class _Value(_Keyed):
    """What every value has that may be missing or too large."""

    tombstones: Tombstones | None = Field(
        default=None,
        description="What to do with a record that has no value: `quarantine` it, `pass` it on as a row of nulls, "
        "`drop` it, or `delete` the row of its key in merging sinks. Defaults to `delete` if sinks merge and none has "
        "`when_newer`, else `quarantine`.",
    )
    max_bytes: Size = Field(
        default=TEN_MIB,
        description="The maximum value size; larger records go to quarantine. A size such as `10 MiB`, or bytes.",
    )


class JsonDecodeConfig(_Value, _JsonFormat):
    """One JSON object a record, strict: what does not fit the columns goes to quarantine with the reason.

    The columns are `schema`, `schema_file`, or the JSON Schema of a registry.
    """

    format: Literal["json"] = Field(description="The format of the value.")


class TextDecodeConfig(_Value):
    """The value as one column of UTF-8 text."""

    format: Literal["text"] = Field(description="The format of the value.")
    column: NewColumn = Field(default="value", description="The name of the column.")


class RawDecodeConfig(Section):
    """The record as it is: the columns `key`, `value` (both bytes) and `headers`. Every record is good."""

    format: Literal["raw"] = Field(description="The format of the value.")


class AvroDecodeConfig(_Value, _AvroFormat):
    """Avro, each record by its own schema, out of a registry or by files."""

    format: Literal["avro"] = Field(description="The format of the value.")


class ProtobufDecodeConfig(_Value, _ProtobufFormat):
    """Protobuf, by a registry or by one file."""

    format: Literal["protobuf"] = Field(description="The format of the value.")


FormatConfig = JsonDecodeConfig | TextDecodeConfig | RawDecodeConfig | AvroDecodeConfig | ProtobufDecodeConfig
"""How records of one topic or of all topics are decoded."""

RegisteredConfig = (
    JsonDecodeConfig | AvroDecodeConfig | ProtobufDecodeConfig | JsonKeyConfig | AvroKeyConfig | ProtobufKeyConfig
)
"""Formats whose columns may come from a registry."""


class ByTopicDecodeConfig(Section):
    """A separate decoder for each topic. Needs `routes`."""

    kind: ClassVar[str] = "of each topic"
    """Its tag. It is not a key of the file: in pydantic's locations the two would look the same."""
    by_topic: Annotated[dict[Topic, Annotated[FormatConfig, Field(discriminator="format")]], Field(min_length=1)] = (
        Field(description="Topic: how its records are decoded.")
    )


def _format_or_by_topic(item: Any) -> str | None:
    by_topic = isinstance(item, ByTopicDecodeConfig) or (isinstance(item, dict) and "by_topic" in item)
    return ByTopicDecodeConfig.kind if by_topic else _format_of(item)


DecodeConfig = Annotated[
    Annotated[JsonDecodeConfig, Tag("json")]
    | Annotated[TextDecodeConfig, Tag("text")]
    | Annotated[RawDecodeConfig, Tag("raw")]
    | Annotated[AvroDecodeConfig, Tag("avro")]
    | Annotated[ProtobufDecodeConfig, Tag("protobuf")]
    | Annotated[ByTopicDecodeConfig, Tag(ByTopicDecodeConfig.kind)],
    Discriminator(_format_or_by_topic),
]

RAW_COLUMNS = read_columns("key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")


def decoded_columns(decode: FormatConfig) -> tuple[Column, ...] | None:
    """The output columns of the decoder, without the coordinates; None if defined by an external schema."""
    columns: tuple[Column, ...] | None = None
    match decode:
        case RawDecodeConfig():
            return RAW_COLUMNS
        case TextDecodeConfig():
            columns = (Column(decode.column, ColumnType("STRING"), nullable=decode.tombstones == "pass"),)
        case JsonDecodeConfig():
            columns = decode.own_columns
    if columns is None or decode.key is None:
        return columns
    kind = _key_type(decode.key)
    return (*columns, Column(decode.key.column, kind)) if kind is not None else None


def _key_type(key: KeyDecodeConfig) -> ColumnType | None:
    match key:
        case TextKeyConfig():
            return ColumnType("STRING")
        case RawKeyConfig():
            return ColumnType("BINARY")
        case JsonKeyConfig() if (columns := key.own_columns) is not None:
            return ColumnType("STRUCT", fields=columns)
    return None


def check_columns(decode: FormatConfig, columns: Sequence[Column], given: Given) -> None:
    """Report settings of a decoder that do not fit its columns."""
    if isinstance(decode, RawDecodeConfig):
        return
    names = [column.name.lower() for column in columns]
    if decode.key is not None and names.count(decode.key.column.lower()) > 1:
        message = f'the schema already has a column "{decode.key.column}"'
        given.report("key", message, "choose another name for the key column: column: ...")
    if not isinstance(decode, JsonDecodeConfig):
        return
    required = [column.name for column in columns if not column.nullable]
    if decode.tombstones == "pass" and required:
        message = "tombstones pass as rows of nulls, but some columns are NOT NULL"
        hint = "remove NOT NULL, or use tombstones: drop or quarantine"
        given.report("tombstones", message, hint, context=[f"NOT NULL: {', '.join(required)}"], at_key=False)
    if decode.extra_fields == "keep" and names.count(decode.extra_column.lower()) > 1:
        message = f'the schema already has a column "{decode.extra_column}"'
        key = "extra_column" if "extra_column" in given else "extra_fields"
        given.report(key, message, "choose another extra_column", at_key=False)
