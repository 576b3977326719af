"""How the bytes of a record become columns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import COORDINATES, Location, Section, Size, Text, wrong

TEN_MIB = 10 * 1024 * 1024

Tombstones = Literal["quarantine", "pass", "drop", "delete"]
_TOMBSTONES = (
    "What to do with a record that has no value: `quarantine` it, `pass` it on as a row of nulls, `drop` it, or "
    "`delete` the row of its key in the sinks that merge. Left out: `delete` where a sink merges, else `quarantine`."
)
_MAX_BYTES = "The largest value that is decoded; a larger one goes to quarantine. A size such as `10 MiB`, or bytes."


def _check_new_column(name: str) -> str:
    if name == COORDINATES:
        raise wrong(f'"{COORDINATES}" is the column of the coordinates; choose another name')
    return name


NewColumn = Annotated[Text, AfterValidator(_check_new_column)]


class RegistryConfig(Section):
    """A schema registry with the Confluent API."""

    url: Text = Field(description="The address of the registry.", examples=["http://localhost:8081"])
    username: SecretStr | None = Field(
        default=None, description="The user or the API key, if the registry asks for one."
    )
    password: SecretStr | None = Field(default=None, description="The password or the API secret, by reference.")


class JsonDecodeConfig(Section):
    """One JSON object a record, strict: what does not fit the schema goes to quarantine with the reason."""

    format: Literal["json"] = Field(description="The format of the value.")
    columns: Text | None = Field(
        default=None,
        alias="schema",
        description="The columns, as Spark SQL writes them: `order_id BIGINT NOT NULL, amount DOUBLE`.",
    )
    schema_file: Location | None = Field(default=None, description="A file that holds the columns instead.")
    extra_fields: Literal["ignore", "keep", "quarantine"] = Field(
        default="ignore",
        description="Fields that the schema does not name: `ignore` them, `keep` them in a map column, or "
        "`quarantine` the record.",
    )
    extra_column: NewColumn = Field(
        default="_extra",
        description="The MAP<STRING, STRING> column for `extra_fields: keep`, each value as JSON text.",
    )
    tombstones: Tombstones | None = Field(default=None, description=_TOMBSTONES)
    max_bytes: Size = Field(default=TEN_MIB, description=_MAX_BYTES)


class TextDecodeConfig(Section):
    """The value as one column of UTF-8 text."""

    format: Literal["text"] = Field(description="The format of the value.")
    column: NewColumn = Field(default="value", description="The name of the column.")
    tombstones: Tombstones | None = Field(default=None, description=_TOMBSTONES)
    max_bytes: Size = Field(default=TEN_MIB, description=_MAX_BYTES)


class RawDecodeConfig(Section):
    """The record as it is: the columns `key`, `value` (both bytes) and `headers`. Every record is good."""

    format: Literal["raw"] = Field(description="The format of the value.")


class AvroDecodeConfig(Section):
    """Avro, by the schemas of a registry or by one file. Give exactly one of `registry` and `schema_file`."""

    format: Literal["avro"] = Field(description="The format of the value.")
    registry: RegistryConfig | None = Field(
        default=None, description="The registry whose schema ids the records carry."
    )
    schema_file: Location | None = Field(default=None, description="One Avro schema (.avsc) for every record.")
    tombstones: Tombstones | None = Field(default=None, description=_TOMBSTONES)
    max_bytes: Size = Field(default=TEN_MIB, description=_MAX_BYTES)


class ProtobufDecodeConfig(Section):
    """Protobuf, by a registry or by one file. Give exactly one of `registry` and `descriptor_file`."""

    format: Literal["protobuf"] = Field(description="The format of the value.")
    registry: RegistryConfig | None = Field(
        default=None, description="The registry whose schema ids the records carry."
    )
    descriptor_file: Location | None = Field(default=None, description="A compiled descriptor set (`protoc -o`).")
    message: Text = Field(description="The full name of the message.", examples=["shop.Order"])
    tombstones: Tombstones | None = Field(default=None, description=_TOMBSTONES)
    max_bytes: Size = Field(default=TEN_MIB, description=_MAX_BYTES)


DecodeConfig = Annotated[
    JsonDecodeConfig | TextDecodeConfig | RawDecodeConfig | AvroDecodeConfig | ProtobufDecodeConfig,
    Field(discriminator="format"),
]
