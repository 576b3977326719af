"""A pipeline file to a pipeline, or to everything that is wrong with the file."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path as FilePath

from penstock.config.checks import check, decoders
from penstock.config.ddl import ColumnsError, read_columns
from penstock.config.decode import (
    ByTopicDecodeConfig,
    FormatConfig,
    JsonDecodeConfig,
    JsonKeyConfig,
    KeyDecodeConfig,
    RawDecodeConfig,
    decoded_columns,
)
from penstock.config.files import fill_references
from penstock.config.pipeline import Parts, PipelineConfig, as_one, whole
from penstock.config.problems import InvalidDefinition, Path, Problem
from penstock.config.validation import valid_parts, validate
from penstock.config.yaml_source import MAX_BYTES, read_document

_CHECKED = {field.name for field in fields(Parts)} - {"file", "columns"}


def load(path: FilePath) -> PipelineConfig:
    """Read and check a pipeline file. Raises `InvalidDefinition` with all its problems, and nothing else."""
    try:
        return _load(path)
    except RecursionError:
        # The parsers of values (SQL, types, regular expressions, JSON) have no other bound on nesting.
        message = "an expression, a type or a pattern in the file is nested too deep"
        raise InvalidDefinition([Problem(str(path), 1, 1, "", message)]) from None


def _load(path: FilePath) -> PipelineConfig:
    file = read_document(path)
    fill_references(file, path.parent)
    config = validate(file, PipelineConfig, path.parent)
    valid = dict(config) if config is not None else valid_parts(file, path.parent)
    parts = Parts(file, **{name: value for name, value in valid.items() if name in _CHECKED})
    _read_all_columns(parts)
    check(parts, valid)
    if file.problems or config is None or parts.decode is None or parts.source is None:
        raise InvalidDefinition(file.problems)
    read = {"source": parts.source, "decode": parts.decode, "sources": parts.sources}
    return config.model_copy(update=read).written_at(file.positions)


def _read_all_columns(parts: Parts) -> None:
    """Find the decoded columns, per source or topic if it has its own decoder."""
    read = {path: _read_columns(parts, decode, path) for decode, path in decoders(parts)}
    if parts.sources:
        for name, source in parts.sources.items():
            if source is not None:
                parts.sources[name] = source.model_copy(update={"decode": read["sources", name, "decode"]})
        if (sources := whole(parts.sources)) is not None:
            parts.source, parts.decode = as_one(sources)
    elif isinstance(parts.decode, ByTopicDecodeConfig):
        parts.decode = parts.decode.model_copy(update={"by_topic": {str(path[-1]): one for path, one in read.items()}})
    else:
        parts.decode = read.get(("decode",))


def _read_columns(parts: Parts, decode: FormatConfig, path: Path) -> FormatConfig:
    """Find the columns of one decoder and its key; those of a schema file become its own."""
    decode = decode.model_copy(update=_read_files(parts, decode, path))
    if not isinstance(decode, RawDecodeConfig) and decode.key is not None:
        key = decode.key.model_copy(update=_read_files(parts, decode.key, (*path, "key")))
        decode = decode.model_copy(update={"key": key})
    parts.columns[path] = decoded_columns(decode)
    return decode


def _read_files(parts: Parts, decode: FormatConfig | KeyDecodeConfig, path: Path) -> dict[str, str | None]:
    """Read the columns of a JSON decoder out of its file; the files of other decoders only have to exist."""
    if not isinstance(decode, JsonDecodeConfig | JsonKeyConfig):
        for key in ("schema_file", "descriptor_file"):
            if (file := getattr(decode, key, None)) is not None:
                _schema_file_text(parts, FilePath(file), (*path, key), binary=True)
        for index, file in enumerate(getattr(decode, "writer_files", ())):
            _schema_file_text(parts, FilePath(file), (*path, "writer_files", index), binary=True)
        return {}
    text, schema_file = decode.columns, None
    if text is None and decode.schema_file is not None:
        schema_file = FilePath(decode.schema_file)
        text = _schema_file_text(parts, schema_file, (*path, "schema_file"))
    try:
        if text is not None:
            read_columns(text)
    except ColumnsError as error:
        if schema_file is None:
            parts.file.report_error((*path, "schema"), error)
        else:
            parts.file.problems.append(_problem_in(schema_file, text or "", error))
        text = None
    return {"columns": text}


def _problem_in(schema_file: FilePath, text: str, error: ColumnsError) -> Problem:
    before = text[: error.offset]
    line, column = before.count("\n") + 1, error.offset - before.rfind("\n")
    return Problem(os.path.relpath(schema_file), line, column, "", error.message, (), error.hint)


def _schema_file_text(parts: Parts, file: FilePath, path: Path, *, binary: bool = False) -> str | None:
    try:
        with file.open(encoding="latin-1" if binary else "utf-8") as opened:
            text = opened.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            parts.file.report(path, f"the schema file is larger than {MAX_BYTES:,} bytes")
            return None
        return text
    except FileNotFoundError:
        parts.file.report(path, "the schema file does not exist", hint="the path is relative to the pipeline file")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        parts.file.report(path, f"reading the schema file: {reason}")
    return None
