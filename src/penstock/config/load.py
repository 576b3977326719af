"""A pipeline file to a pipeline, or to everything that is wrong with the file."""

from __future__ import annotations

import os
from pathlib import Path as FilePath

from penstock.config.checks import check
from penstock.config.ddl import ColumnsError
from penstock.config.decode import JsonDecodeConfig
from penstock.config.parts import Parts
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import InvalidDefinition, Problem
from penstock.config.references import fill_references
from penstock.config.stages import decoded_columns
from penstock.config.validation import validate
from penstock.config.yaml_source import MAX_BYTES, read_source


def load(path: FilePath) -> PipelineConfig:
    """Read and check a pipeline file. Raises `InvalidDefinition` with all its problems."""
    source = read_source(path)
    parts = Parts(source, fill_references(source, path.parent))
    config = validate(parts, path.parent)
    _read_columns(parts)
    check(parts)
    if source.problems or config is None or parts.decode is None:
        raise InvalidDefinition(source.problems)
    return config.model_copy(update={"decode": parts.decode}).written_at(source.positions)


def _read_columns(parts: Parts) -> None:
    """Find the decoded columns; those of a schema file become the decoder's own."""
    decode = parts.decode
    if decode is None:
        return
    schema_file, text = None, None
    if isinstance(decode, JsonDecodeConfig) and decode.columns is None and decode.schema_file is not None:
        schema_file = FilePath(decode.schema_file)
        text = _schema_file_text(parts, schema_file)
        parts.decode = decode = decode.model_copy(update={"columns": text})
    try:
        parts.columns = decoded_columns(decode)
    except ColumnsError as error:
        if schema_file is None:
            parts.report(("decode", "schema"), error.message, offset=error.offset, hint=error.hint)
        else:
            parts.file.problems.append(_problem_in(schema_file, text or "", error))


def _problem_in(schema_file: FilePath, text: str, error: ColumnsError) -> Problem:
    before = text[: error.offset]
    line, column = before.count("\n") + 1, error.offset - before.rfind("\n")
    return Problem(os.path.relpath(schema_file), line, column, "", error.message, (), error.hint)


def _schema_file_text(parts: Parts, file: FilePath) -> str | None:
    path = ("decode", "schema_file")
    try:
        if file.stat().st_size > MAX_BYTES:
            parts.report(path, f"the schema file is larger than {MAX_BYTES:,} bytes")
            return None
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        parts.report(path, "the schema file is not there", hint="the path is relative to the pipeline file")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        parts.report(path, f"reading the schema file: {reason}")
    return None
