"""The cases of a pipeline, `orders.test.yaml` next to `orders.yaml`: messages in, and the expected output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from penstock.config.fields import Duration, Location, Section, Text, wrong
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import InvalidDefinition, Path, Positions, did_you_mean
from penstock.config.source import Partition, Topic
from penstock.config.validation import validate
from penstock.config.yaml_source import Document, Given, read_document, value_at

Row = dict[str, Any]


def _check_hex(text: str) -> str:
    try:
        bytes.fromhex(text)
    except ValueError:
        raise wrong("not hex: write two digits (0-9, a-f) per byte; spaces between bytes are allowed") from None
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

    value: Any = Field(
        default=None, description="Plain text, or a mapping or list that is sent as JSON; null is a tombstone."
    )
    value_hex: Hex | None = Field(default=None, description="The value in hex.")
    key: Any = Field(default=None, description="As `value`.")
    key_hex: Hex | None = Field(default=None, description="The key in hex.")
    headers: dict[str, str | None] = Field(default_factory=dict, description="Name: text.")
    topic: Topic | None = Field(default=None, description="Defaults to the only topic of the pipeline.")
    partition: Partition = Field(default=0, description="The partition.")
    offset: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Defaults to the next offset.")
    time: Annotated[datetime, BeforeValidator(_to_time)] | None = Field(
        default=None, description="Defaults to one second after the previous message."
    )

    def value_bytes(self) -> bytes | None:
        """The value as it is in the topic."""
        return bytes.fromhex(self.value_hex) if self.value_hex is not None else to_bytes(self.value)

    def key_bytes(self) -> bytes | None:
        """The key as it is in the topic."""
        return bytes.fromhex(self.key_hex) if self.key_hex is not None else to_bytes(self.key)


class AdvanceCase(Section):
    """The passing of time between two batches."""

    kind: ClassVar[str] = "time"
    advance: Duration = Field(description="How much event time passes: the watermark advances by this.")


def _kind_of_batch(value: Any) -> str:
    return AdvanceCase.kind if isinstance(value, dict | AdvanceCase) else "batch"


Messages = Annotated[tuple[MessageCase, ...], Field(strict=False)]
Batch = Annotated[
    Annotated[Messages, Tag("batch")] | Annotated[AdvanceCase, Tag(AdvanceCase.kind)], Discriminator(_kind_of_batch)
]


class ExpectCase(Section):
    """What must come out, over all batches together."""

    sinks: dict[str, Rows] = Field(default_factory=dict, description="Sinks that are not named are not checked.")
    quarantine: Rows = Field(default=(), description="If omitted, no record may be quarantined.")
    counts: dict[str, int] = Field(default_factory=dict, description="What the named rules of `expect` counted.")
    state: int | Rows | None = Field(default=None, description="The number of state rows left, or the rows themselves.")
    error: Text | None = Field(default=None, description="The error code that the pipeline must stop with.")


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

    name: Text = Field(description="A description of the case.")
    tables: Tables = Field(default_factory=dict, description="The rows of the pipeline's `tables`.")
    messages: Messages = Field(default=(), description="The messages of one batch.")
    batches: Annotated[tuple[Batch, ...], Field(strict=False)] = Field(
        default=(), description="Several batches, with time passing between them."
    )
    expect: ExpectCase | None = Field(default=None, description="The expected output.")
    ordered: bool = Field(default=False, description="Rows must arrive in the expected order.")
    exact: bool = Field(default=False, description="Expected rows must name every column except `_penstock`.")

    @property
    def all_batches(self) -> tuple[tuple[MessageCase, ...] | AdvanceCase, ...]:
        """The batches and the time between them."""
        return self.batches or (self.messages,)


class CaseFile(Section):
    """All cases of one pipeline."""

    cases: Annotated[tuple[Case, ...], Field(strict=False, min_length=1)] = Field(description="The cases.")
    tables: Tables = Field(default_factory=dict, description="Rows for every case that does not define its own.")
    schemas: dict[str, Location] = Field(
        default_factory=dict, description="The schema file of each subject, instead of a registry."
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
    """A message's value or key: text unchanged, anything else as JSON, None for null."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def read_case_document(file: FilePath) -> Document:
    """Read a case file as strictly as a pipeline file. Raises if it is not a mapping."""
    return read_document(file, "cases: [...]", any_value=True)


_CODES = ("code", "message", "stage", "topic", "partition", "offset", "key", "value", "headers", "timestamp")


def load_cases(path: FilePath, pipeline: PipelineConfig) -> CaseFile:
    """Read and check the cases of a pipeline. Raises `InvalidDefinition` with all their problems."""
    file = read_case_document(path)
    cases = validate(file, CaseFile, path.parent)
    if cases is not None:
        for index, case in enumerate(cases.cases):
            _check_case(Given(file, ("cases", index)), case, pipeline)
        _check_names(file, cases)
        _check_tables(file, cases, pipeline)
    if file.problems or cases is None:
        raise InvalidDefinition(file.problems)
    cases._positions = file.positions
    return cases


def _check_names(file: Document, cases: CaseFile) -> None:
    first: dict[str, int] = {}
    for index, case in enumerate(cases.cases):
        if first.setdefault(case.name, index) != index:
            message = f'duplicate case name "{case.name}"; cases are identified by name'
            file.report(("cases", index, "name"), message)


def _check_case(given: Given, case: Case, pipeline: PipelineConfig) -> None:
    if "messages" in given and "batches" in given:
        given.report("batches", "only one of messages and batches can be given")
    for path, one in _messages(case):
        _check_message(Given(given.document, given.at(*path)), one, pipeline)
    for name in case.expect.sinks if case.expect else ():
        _check_known(given, ("expect", "sinks", name), "sink", [sink.name for sink in pipeline.sinks])
    for index, row in enumerate(case.expect.quarantine if case.expect else ()):
        for name in row:
            if name not in _CODES:
                message, context = f'the quarantine has no column "{name}"', [f"columns: {', '.join(_CODES)}"]
                at = ("expect", "quarantine", index, name)
                given.report(at, message, did_you_mean(name, _CODES), context=context)


def _check_tables(file: Document, cases: CaseFile, pipeline: PipelineConfig) -> None:
    """Every table that is named is the pipeline's, and every case has rows for all that the pipeline joins."""
    for name in cases.tables:
        _check_known(Given(file, ()), ("tables", name), "table", list(pipeline.tables))
    for index, case in enumerate(cases.cases):
        given = Given(file, ("cases", index))
        for name in case.tables:
            _check_known(given, ("tables", name), "table", list(pipeline.tables))
        missing = [name for name in pipeline.tables if name not in case.tables and name not in cases.tables]
        if missing:
            hint = f"add tables: {{{missing[0]}: [{{...}}]}} to the case, or to the file for all cases"
            message = f"no rows are given for the table {missing[0]}; tests do not read real tables"
            given.report((), message, hint, at_key=False)


def _check_known(given: Given, path: Path, kind: str, known: Sequence[str]) -> None:
    name = str(path[-1])
    if name not in known:
        message, context = f'the pipeline has no {kind} "{name}"', [f"{kind}s: {', '.join(known) or 'none'}"]
        given.report(path, message, did_you_mean(name, known), context=context)


def _messages(case: Case) -> Iterator[tuple[Path, MessageCase]]:
    for index, message in enumerate(case.messages):
        yield ("messages", index), message
    for number, batch in enumerate(case.batches):
        for index, message in enumerate(batch if isinstance(batch, tuple) else ()):
            yield ("batches", number, index), message


def _check_message(given: Given, message: MessageCase, pipeline: PipelineConfig) -> None:
    written = value_at(given.document.data, given.path)  # A null is a value here.
    if "value" not in written and "value_hex" not in written:
        hint = "for a record without a value, write value: null"
        given.report((), "one of value and value_hex is needed", hint, at_key=False)
    for name in ("value", "key"):
        if name in written and f"{name}_hex" in written:
            given.report(f"{name}_hex", f"only one of {name} and {name}_hex can be given")
    topics = pipeline.source.named_topics
    context = [f"topics: {', '.join(topics or ())}"]
    if message.topic is None and topics is None:
        text = "the pipeline reads topics by pattern; set the topic of the message"
        given.report((), text, at_key=False)
    elif message.topic is None and topics is not None and len(topics) != 1:
        given.report((), "the pipeline reads several topics; set one", context=context, at_key=False)
    elif message.topic is not None and topics is not None and message.topic not in topics:
        text = f'the pipeline does not read "{message.topic}"'
        given.report("topic", text, did_you_mean(message.topic, topics), context=context, at_key=False)
