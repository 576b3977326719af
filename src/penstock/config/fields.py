"""The kinds of field that the models are made of: names, paths, durations, sizes, secrets.

Each refuses a wrong value with our own words, which say what is expected; the translation to a problem adds
the place and what was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from penstock.config.durations import parse_duration, parse_size

COORDINATES = "_penstock"
"""As `penstock.model.COORDINATES`; a test holds it to that. Importing it would load Arrow for every `validate`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|sasl\.jaas|private\.key|key\.pem|keystore\.key|user\.info"
    r"|access[._]key|account[._]key|sas[._](key|token)|service[._]account[._]key"
)
_NOT_SECRET = re.compile(r"(url|uri|location|file|path|type|class|provider|mechanism|enabled|seconds|\.ms)$")


class Section(BaseModel):
    """A part of the pipeline file: frozen, strict about types, and closed to keys it does not know."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, strict=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


class Step(Section):
    """One step of `transforms`: its kind is its one key beside those of `BESIDE`."""

    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="What the step is called in `plan` and in messages."
    )


class ComputingStep(Step):
    """A step that evaluates expressions, which may fail on a row."""

    on_error: Literal["quarantine", "fail"] | None = Field(
        default=None,
        description="What happens to a row for which an expression fails, such as text that is no number: `quarantine` "
        "its record, or `fail` and stop the pipeline. Left out, `quarantine` where the pipeline has a quarantine.",
    )


BESIDE = frozenset({"name", "on_error"})
"""The keys of a step that stand beside its kind."""


def wrong(message: str, hint: str | None = None) -> PydanticCustomError:
    """The error for a value that is refused: what is expected, and what to do."""
    return PydanticCustomError("penstock", "{message}", {"message": message, "hint": hint})


def is_secret(option: str) -> bool:
    """Whether the value of a client or Spark setting is a secret, going by its name."""
    name = option.lower()
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


def reveal(settings: Mapping[str, str | SecretStr]) -> dict[str, str]:
    """Settings with their secrets in the open, for the client that needs them. Not for a message or a log."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in settings.items()
    }


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise wrong("a name has letters, digits, - _ and . and starts with a letter or a digit")
    if len(name) > 100:
        raise wrong("a name has at most 100 characters")
    return name


def _to_duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(str(value) if isinstance(value, int | float) else _text(value, "10 seconds"))
    except ValueError as error:
        raise wrong(f"not a duration: {error}") from None


def _to_size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return parse_size(_text(value, "10 MiB"))
    except ValueError as error:
        raise wrong(f"not a size: {error}") from None


def _text(value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, such as {example}")
    return value


def expand_home(path: str) -> FilePath:
    """A path with `~` and `~user` filled in; of a user that is not there it stays as written."""
    return FilePath(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises where there is no such user


def is_uri(location: str) -> bool:
    """Whether a location names its own file system: `s3://...`, `file:///...`."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", location) is not None


def resolve_location(location: str, folder: FilePath) -> str:
    """A location as an absolute path; relative ones are relative to the pipeline file's folder."""
    if is_uri(location):
        return location
    return os.path.normpath(folder.absolute() / expand_home(location))


def _to_location(location: str, info: ValidationInfo) -> str:
    if not location.strip():
        raise wrong("a path is expected, the text is empty")
    folder = (info.context or {}).get("folder")
    return resolve_location(location, folder) if folder else location


def _to_settings(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _to_setting(name, setting) for name, setting in value.items()}


def _to_setting(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, int | float):
        value = str(value)
    return SecretStr(value) if isinstance(value, str) and is_secret(name) else value


_TEXT = WithJsonSchema({"type": "string"})

Name = Annotated[str, AfterValidator(_check_name)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]
Count = Annotated[int, Field(ge=1)]
Location = Annotated[str, AfterValidator(_to_location)]
Duration = Annotated[
    timedelta,
    BeforeValidator(_to_duration),
    WithJsonSchema({"type": "string", "examples": ["500 ms", "10 seconds", "2 minutes", "1 hour"]}),
]
Size = Annotated[
    int,
    BeforeValidator(_to_size),
    Field(ge=1),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["10 MiB"]}),
]
Settings = Annotated[
    dict[str, str | SecretStr],
    BeforeValidator(_to_settings),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "integer", "number", "boolean"]}}),
]
