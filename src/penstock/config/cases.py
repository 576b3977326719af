"""The cases of a pipeline, `orders.test.yaml` beside `orders.yaml`: messages in, and what must come out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag, ValidationError

from penstock.config.fields import Duration, Location, Section, Text, wrong
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import InvalidDefinition, Path, Positions, Problem, Spot, did_you_mean, suggest
from penstock.config.source import Partition, Topic
from penstock.config.validation import keys_at, path_of, word
from penstock.config.yaml_source import TAG, Reading, Source, compose_bounded, read_yaml_text, value_at

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

    kind: ClassVar[str] = "time"
    advance: Duration = Field(description="How much event time passes: the watermark moves on by this.")


def _kind_of_batch(value: Any) -> str:
    return AdvanceCase.kind if isinstance(value, dict | AdvanceCase) else "batch"


Messages = Annotated[tuple[MessageCase, ...], Field(strict=False)]
Batch = Annotated[
    Annotated[Messages, Tag("batch")] | Annotated[AdvanceCase, Tag(AdvanceCase.kind)], Discriminator(_kind_of_batch)
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
    messages: Messages = Field(default=(), description="The messages of one batch.")
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


# A case file to cases, or to everything that is wrong with it: as strict as the pipeline file, with every place.
#
# Here a null is a value like any other. Messages and rows hold text that is checked against no type, so what YAML 1.1
# makes of `NO` is a problem too.

_NULL: Any = object()
"""Stands for a null while the file is read: to the reading of a pipeline file None means a problem."""


def read_case_source(file: FilePath) -> Source:
    """Read a case file. Raises where it cannot be read as one mapping at all."""
    name = str(file)
    text = read_yaml_text(file, name)
    root = compose_bounded(name, text)
    if not isinstance(root, yaml.MappingNode):
        raise InvalidDefinition([Problem(name, 1, 1, "", "the file is no mapping", ("expected: cases: [...]",))])
    reading = _CaseReading(name, text)
    data = _with_nulls(reading.mapping(root, ()))
    return Source(Positions(name, reading.values, reading.keys), data, reading.problems, reading.broken)


class _CaseReading(Reading):
    def _scalar(self, node: Any, path: Path, spot: Spot) -> Any:
        if node.tag == f"{TAG}null":
            return _NULL
        if node.tag == f"{TAG}bool" and spot.text.lower() not in ("true", "false"):
            self._add(path, spot, f"YAML 1.1 reads {spot.text} as true or false", f'quote it: "{spot.text}"')
            return None
        return super()._scalar(node, path, spot)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value is _NULL else value


_CODES = ("code", "message", "stage", "topic", "partition", "offset", "key", "value", "headers", "timestamp")


def load_cases(path: FilePath, pipeline: PipelineConfig) -> CaseFile:
    """Read and check the cases of a pipeline. Raises `InvalidDefinition` with all their problems."""
    source = read_case_source(path)
    cases = _validated(source, path.parent)
    if cases is not None:
        for index, case in enumerate(cases.cases):
            _check_case(source, ("cases", index), case, pipeline)
        _check_names(source, cases)
        _check_tables(source, cases, pipeline)
    if source.problems or cases is None:
        raise InvalidDefinition(source.problems)
    cases._positions = source.positions
    return cases


def _validated(source: Source, folder: FilePath) -> CaseFile | None:
    try:
        return CaseFile.model_validate(source.data, context={"folder": folder})
    except ValidationError as error:
        errors = [(path_of(source.data, found), found) for found in error.errors(include_url=False)]
    # A misspelt key stands for the one that was meant: that one is not missing.
    seen = {_report_unknown(source, path, found) for path, found in errors if found["type"] == "extra_forbidden"}
    for path, found in errors:
        value = value_at(source.data, path)
        # Pydantic counts only the entries that are valid; those that are not have their own error.
        counted = found["type"] == "too_short" and value
        broken = any(path[:end] in source.broken for end in range(1, len(path) + 1))
        if counted or broken or path in seen or found["type"] == "extra_forbidden":
            continue
        seen.add(path)
        message, context, hint = word(found, path, value, source.positions, False)
        if value is None and found["type"] != "missing":
            message, context, hint = "there is no value", (), "write one, or remove the key"
        source.problems.append(source.positions.problem(path, message, context=context, hint=hint))
    return None


def _report_unknown(source: Source, path: Path, found: Any) -> Path:
    """Report a key that nobody knows; the path that was likely meant."""
    known, name = keys_at(found["loc"][:-1], CaseFile), str(path[-1])
    hint = did_you_mean(name, known)
    context = () if hint else (f"known keys: {', '.join(known)}",)
    source.problems.append(
        source.positions.problem(path, f'unknown key "{name}"', context=context, hint=hint, at_key=True)
    )
    return (*path[:-1], suggest(name, known) or name)


def _check_names(source: Source, cases: CaseFile) -> None:
    first: dict[str, int] = {}
    for index, case in enumerate(cases.cases):
        if first.setdefault(case.name, index) != index:
            message = f'the name "{case.name}" is there twice; cases are told apart by their names'
            source.problems.append(source.positions.problem(("cases", index, "name"), message))


def _check_case(source: Source, path: Path, case: Case, pipeline: PipelineConfig) -> None:
    def report(where: Path, message: str, **about: Any) -> None:
        source.problems.append(source.positions.problem((*path, *where), message, **about))

    written = value_at(source.data, path)
    if "messages" in written and "batches" in written:
        report(("batches",), "only one of messages and batches can be given", at_key=True)
    for where, message in _messages(case):
        _check_message(report, where, value_at(source.data, (*path, *where)), message, pipeline)
    for name in case.expect.sinks if case.expect else ():
        _check_known(source, (*path, "expect", "sinks", name), "sink", [sink.name for sink in pipeline.sinks])
    for index, row in enumerate(case.expect.quarantine if case.expect else ()):
        for name in row:
            if name not in _CODES:
                context, hint = (f"columns: {', '.join(_CODES)}",), did_you_mean(name, _CODES)
                said = f'the quarantine has no column "{name}"'
                report(("expect", "quarantine", index, name), said, context=context, hint=hint, at_key=True)


def _check_tables(source: Source, cases: CaseFile, pipeline: PipelineConfig) -> None:
    """Every table that is named is the pipeline's, and every case has rows for all that the pipeline joins."""
    for name in cases.tables:
        _check_known(source, ("tables", name), "table", list(pipeline.tables))
    for index, case in enumerate(cases.cases):
        path: Path = ("cases", index)
        for name in case.tables:
            _check_known(source, (*path, "tables", name), "table", list(pipeline.tables))
        missing = [name for name in pipeline.tables if name not in case.tables and name not in cases.tables]
        if missing:
            hint = f"add tables: {{{missing[0]}: [{{...}}]}} to the case, or to the file for all cases"
            message = f"no rows are given for the table {missing[0]}, and a test reads no table"
            source.problems.append(source.positions.problem(path, message, hint=hint))


def _check_known(source: Source, path: Path, kind: str, known: Sequence[str]) -> None:
    name = str(path[-1])
    if name not in known:
        context, hint = (f"{kind}s: {', '.join(known) or 'none'}",), did_you_mean(name, known)
        message = f'the pipeline has no {kind} "{name}"'
        source.problems.append(source.positions.problem(path, message, context=context, hint=hint, at_key=True))


def _messages(case: Case) -> Iterator[tuple[Path, MessageCase]]:
    for index, message in enumerate(case.messages):
        yield ("messages", index), message
    for number, batch in enumerate(case.batches):
        for index, message in enumerate(batch if isinstance(batch, tuple) else ()):
            yield ("batches", number, index), message


def _check_message(report: Any, where: Path, written: Any, message: MessageCase, pipeline: PipelineConfig) -> None:
    if "value" not in written and "value_hex" not in written:
        report(where, "one of value and value_hex is needed", hint="a record without a value is written value: null")
    for name in ("value", "key"):
        if name in written and f"{name}_hex" in written:
            report((*where, f"{name}_hex"), f"only one of {name} and {name}_hex can be given", at_key=True)
    topics = topics_of(pipeline)
    if message.topic is None and topics is not None and len(topics) != 1:
        report(where, "the pipeline reads several topics; say which", context=(f"topics: {', '.join(topics)}",))
    elif message.topic is None and topics is None:
        report(where, "the pipeline reads topics by a pattern; say which topic the message is in")
    elif message.topic is not None and topics is not None and message.topic not in topics:
        hint = did_you_mean(message.topic, topics)
        report(
            (*where, "topic"),
            f'the pipeline does not read "{message.topic}"',
            context=(f"topics: {', '.join(topics)}",),
            hint=hint,
        )
