"""The cases of a pipeline, `orders.test.yaml` beside `orders.yaml`: messages in, and what must come out."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from penstock.config.fields import Duration, Location, Section, Text, wrong
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import Positions
from penstock.config.source import Partition, Topic

Row = dict[str, Any]


def _check_hex(text: str) -> str:
    try:
        bytes.fromhex(text)
    except ValueError:
        raise wrong("not hex: two digits of 0-9 and a-f for each byte, blanks between bytes are allowed") from None
    return text


def _to_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    try:
        time = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise wrong("not a time", "write it as 2026-01-31T08:00:00Z") from None
    if time.tzinfo is None:
        raise wrong("the time has no zone", f"add one: {time.isoformat()}Z, or an offset such as +02:00")
    return time


Hex = Annotated[str, AfterValidator(_check_hex)]
Rows = Annotated[tuple[Row, ...], Field(strict=False)]


class MessageCase(Section):
    """One message. Its value is text, a mapping or list that is sent as JSON, or bytes in hex; null is a tombstone."""

    value: Any = Field(default=None, description="Text as it is; a mapping or a list as JSON; null is a tombstone.")
    value_hex: Hex | None = Field(default=None, description="The bytes of the value, in hex.")
    key: Any = Field(default=None, description="As `value`.")
    key_hex: Hex | None = Field(default=None, description="The bytes of the key, in hex.")
    headers: dict[str, str | None] = Field(default_factory=dict, description="Name: text.")
    topic: Topic | None = Field(default=None, description="Left out, the only topic of the pipeline.")
    partition: Partition = Field(default=0, description="The partition.")
    offset: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Left out, counted up.")
    time: Annotated[datetime, BeforeValidator(_to_time)] | None = Field(
        default=None, description="Left out, one second after the message before."
    )

    def value_bytes(self) -> bytes | None:
        """The value as it is in the topic."""
        return bytes.fromhex(self.value_hex) if self.value_hex is not None else to_bytes(self.value)

    def key_bytes(self) -> bytes | None:
        """The key as it is in the topic."""
        return bytes.fromhex(self.key_hex) if self.key_hex is not None else to_bytes(self.key)


class AdvanceCase(Section):
    """The passing of time between two batches."""

    advance: Duration = Field(description="How much event time passes: the watermark moves on by this.")


def _kind_of_batch(value: Any) -> str:
    return "time" if isinstance(value, dict | AdvanceCase) else "batch"


Batch = Annotated[
    Annotated[tuple[MessageCase, ...], Field(strict=False), Tag("batch")] | Annotated[AdvanceCase, Tag("time")],
    Discriminator(_kind_of_batch),
]


class ExpectCase(Section):
    """What must come out, over all batches together."""

    sinks: dict[str, Rows] = Field(default_factory=dict, description="A sink that is not named is not looked at.")
    quarantine: Rows = Field(default=(), description="Left out, no record may be quarantined.")
    counts: dict[str, int] = Field(default_factory=dict, description="What the named rules of `expect` counted.")
    state: int | Rows | None = Field(default=None, description="How many rows of state are left, or which.")
    error: Text | None = Field(default=None, description="The code with which the pipeline must stop.")


class TableCase(Section):
    """The rows of a table with the types of its columns."""

    columns: Text = Field(alias="schema", description="The columns with their types.")
    rows: Rows = Field(description="The rows.")


def _kind_of_table(value: Any) -> str:
    return "table" if isinstance(value, dict | TableCase) else "rows"


Tables = dict[
    str,
    Annotated[Annotated[Rows, Tag("rows")] | Annotated[TableCase, Tag("table")], Discriminator(_kind_of_table)],
]


class Case(Section):
    """One case. Give `messages`, which are one batch, or `batches`."""

    name: Text = Field(description="What the case is about.")
    tables: Tables = Field(default_factory=dict, description="The rows of the pipeline's `tables`.")
    messages: Annotated[tuple[MessageCase, ...], Field(strict=False)] = Field(
        default=(), description="The messages of one batch."
    )
    batches: Annotated[tuple[Batch, ...], Field(strict=False)] = Field(
        default=(), description="Several batches, and the time that passes between them."
    )
    expect: ExpectCase | None = Field(default=None, description="What must come out.")
    ordered: bool = Field(default=False, description="Rows must come in the order in which they are expected.")
    exact: bool = Field(default=False, description="An expected row names every column but `_penstock`.")

    @property
    def all_batches(self) -> tuple[tuple[MessageCase, ...] | AdvanceCase, ...]:
        """The batches and the time between them."""
        return self.batches or (self.messages,)


class CaseFile(Section):
    """All cases of one pipeline."""

    cases: Annotated[tuple[Case, ...], Field(strict=False, min_length=1)] = Field(description="The cases.")
    tables: Tables = Field(default_factory=dict, description="Rows for every case that gives none of its own.")
    schemas: dict[str, Location] = Field(
        default_factory=dict, description="The schema file of each subject, in place of a registry."
    )

    _positions: Positions = PrivateAttr(default_factory=lambda: Positions(""))

    @property
    def file(self) -> FilePath:
        """Where it was written."""
        return FilePath(self._positions.file)


def case_file_of(pipeline_file: FilePath) -> FilePath:
    """`orders.test.yaml` for `orders.yaml`."""
    return pipeline_file.with_suffix(f".test{pipeline_file.suffix or '.yaml'}")


def to_bytes(value: Any) -> bytes | None:
    """A message's value or key: text as it is, anything else as JSON, nothing for a null."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def topics_of(pipeline: PipelineConfig) -> tuple[str, ...] | None:
    """The topics that a pipeline names; None where it names a pattern."""
    source = pipeline.source
    return None if source.pattern is not None else source.topics or tuple(source.assign or ())
