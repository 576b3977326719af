"""The kinds of field that the models are made of: names, paths, durations, sizes, secrets.

Each rejects a wrong value with a message that says what is expected; the conversion to a problem adds the location and
the given value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path as FilePath
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

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

from penstock.config.problems import Path

if TYPE_CHECKING:
    from penstock.config.yaml_source import Given

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
_BYTES = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
LONGEST = timedelta(days=36_500)
LARGEST = 2**60
"""Bytes: 1 EiB."""


def parse_duration(text: str) -> timedelta:
    """A duration with its unit: `500 ms`, `10 seconds`, `2 minutes`, `1 hour`, `1 day`."""
    number, unit = _split(text, _SECONDS, "ms, seconds, minutes, hours or days", "10 seconds")
    if number * unit > LONGEST.total_seconds():
        raise ValueError("must be at most 36,500 days")
    duration = timedelta(seconds=number * unit)
    if not duration:
        raise ValueError("must be longer than zero")
    return duration


def parse_size(text: str) -> int:
    """A size in bytes: `512 KiB`, `10 MiB`, `1 GB`, or a plain number of bytes."""
    if text.strip().isdecimal():
        return int(text)
    number, unit = _split(text, _BYTES, "bytes, KiB, MiB, GiB, KB, MB or GB", "10 MiB")
    return int(min(number * unit, LARGEST + 1))


def show_duration(duration: timedelta) -> str:
    """A duration in the largest unit that gives a whole number."""
    milliseconds = round(duration.total_seconds() * 1000)
    for size, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        count, rest = divmod(milliseconds, size)
        if count and not rest:
            return f"{count} {name}" + ("s" if count != 1 else "")
    return f"{milliseconds} ms"


def _split(text: str, units: dict[str, float] | dict[str, int], names: str, example: str) -> tuple[float, float]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a number and a unit, such as {example}")
    number, unit = found.groups()
    if not unit:
        raise ValueError(f"the unit is missing: write {names}")
    if unit.lower() not in units:
        raise ValueError(f'"{unit}" is not a unit: write {names}')
    return float(number), units[unit.lower()]


COORDINATES = "_penstock"
"""As `penstock.model.COORDINATES`; a test compares the two. Importing it would load Arrow for every `validate`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SECRET_NAMES = (
    "password|passwd|passphrase|secret|token|credential|authorization|cookie|jaas|private[._-]?key|key[.]pem"
    "|user[._-]?info|(access|account|api|encryption|sas)[._-]?key|[._-]sas[._-]|connection[._-]?string|[._-]key$"
)
"""Matches the name of a secret, in lower case; a regular expression of Python and of Java, which redacts by it."""
_SECRET = re.compile(SECRET_NAMES)
_PLAIN_BY_REFERENCE = frozenset(
    f"spark.{name}"
    for name in ("master", "driver.memory", "driver.extraClassPath", "driver.extraLibraryPath", "driver.cores")
)
"""JVM options: addresses, sizes and paths on its command line, even if they come from a reference."""
_NOT_SECRET = re.compile(r"(url|uri|location|file|path|type|class|provider|mechanism|enabled|seconds|\.ms)$")


_SECRET_KEYS = ("url", "uri", "registry", "webhook", "headers", "hash")


class SecretKind(Enum):
    """Marks a field whose text must not contain a secret: secrets come by reference."""

    SECRET = "all of it is a secret"
    URL = "an address, which may hold a password"
    WEBHOOK = "an address that may be a secret as a whole, and must not hold a password"
    HEADER = "a header of HTTP, whose name says whether it is a secret"
    SETTING = "a setting of a client or of Spark, whose name says whether it is a secret"


class FromReference(str):
    """Text from a reference: as a client or Spark setting it is a secret, whatever its name."""

    __slots__ = ()


class RevealedSecret(str):
    """A revealed secret on its way to the client; its type keeps it from being printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


class Section(BaseModel):
    """A part of the pipeline file: frozen, strict about types, and closed to keys it does not know."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, strict=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )

    exactly_one: ClassVar[tuple[str, ...]] = ()
    """Exactly one of these keys is required."""
    needs: ClassVar[Mapping[str, str]] = {}
    """Keys that require another key."""

    @classmethod
    def check_keys(cls, given: Given) -> None:
        """Report keys that are missing or exclude each other. Their values need not be valid."""
        if cls.exactly_one:
            given.at_least_one(cls.exactly_one)
            given.at_most_one(cls.exactly_one)
        for key, needed in cls.needs.items():
            if key in given and needed not in given:
                given.report(key, f"{key} means nothing without {needed}", f"add {needed}")

    def check_values(self, given: Given) -> None:
        """Report values that contradict each other. Each one is valid on its own."""


def walk(kind: Any, data: Any, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Each section of some data as (path, model, instance), and each secret as (path, SecretKind, None).

    `kind` is the annotation that describes the data, and `value` the validated value: None if it was refused.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if not isinstance(data, dict | list):
            yield from ((path, mark, None) for mark in arguments[1:] if isinstance(mark, SecretKind))
        yield from walk(arguments[0], data, value, path)
    elif origin is Union or origin is UnionType:
        members = [member for member in arguments if not models_of(member)]
        yield from (found for member in (*members, *_chosen(kind, data)) for found in walk(member, data, value, path))
    elif origin is tuple and isinstance(data, list):
        for index, item in enumerate(data):
            inside = value[index] if isinstance(value, tuple) else None
            yield from walk(arguments[0], item, inside, (*path, index))
    elif origin is dict and isinstance(data, dict):
        for key, item in data.items():
            yield from walk(arguments[1], item, value.get(key) if isinstance(value, dict) else None, (*path, key))
    elif isinstance(kind, type) and issubclass(kind, Section) and isinstance(data, dict):
        instance = value if isinstance(value, kind) else None
        yield path, kind, instance
        for name, field in kind.model_fields.items():
            key = field.alias or name
            if key in data:
                inside = getattr(instance, name) if instance is not None else None
                yield from walk(field.rebuild_annotation(), data[key], inside, (*path, key))


def _chosen(union: Any, data: Any) -> list[type[Section]]:
    """The model of a union that describes some data: the only one, or the one that the data names."""
    models = models_of(union)
    if len(models) > 1:
        models = [model for model in reversed(models) if isinstance(data, dict) and _describes(model, data)]
    return models[:1]


def _describes(model: type[Section], data: Mapping[str, Any]) -> bool:
    key, tags = tags_of(model)
    if tags:
        return data.get(key, model.model_fields[key].default) in tags
    return all(name in data for name, field in model.model_fields.items() if field.is_required())


def models_of(union: Any) -> list[type[Section]]:
    """The models that an annotation chooses between."""
    if isinstance(union, type) and issubclass(union, Section):
        return [union]
    if get_origin(union) in (Annotated, Union, UnionType):
        return [model for inner in get_args(union) for model in models_of(inner)]
    return []


def tags_of(model: type[Section]) -> tuple[str, tuple[str, ...]]:
    """The key whose value chooses a model in a union, and the values that do; none for a step."""
    for key in ("type", "format"):
        if key in model.model_fields and get_origin(model.model_fields[key].annotation) is Literal:
            return key, get_args(model.model_fields[key].annotation)
    return "", ()


BESIDE = frozenset({"name", "on_error"})
"""The keys that any step may have next to its kind."""


class Step(Section):
    """One step of `transforms`: its kind is its only key besides those in `BESIDE`."""

    kind: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Its kind is the name of its own field."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.kind = next((name for name in cls.model_fields if name not in BESIDE), "")

    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="What the step is called in `plan` and in messages."
    )

    @property
    def remembers(self) -> bool:
        """Whether it keeps state from batch to batch."""
        return False


class ComputingStep(Step):
    """A step that evaluates expressions, which may fail on a row."""

    on_error: Literal["quarantine", "fail"] | None = Field(
        default=None,
        description="What happens to a row for which an expression fails, such as text that is not a number: "
        "`quarantine` its record, or `fail` and stop the pipeline. Left out, `quarantine` where the pipeline "
        "has a quarantine.",
    )


class StatefulStep(Step):
    """A step that keeps state from batch to batch."""

    @property
    def remembers(self) -> bool:
        """It does."""
        return True


def wrong(message: str, hint: str | None = None) -> PydanticCustomError:
    """The error for a value that is refused: what is expected, and what to do."""
    return PydanticCustomError("penstock", "{message}", {"message": message, "hint": hint})


def is_secret(option: str) -> bool:
    """Whether the value of a client or Spark setting is a secret going by its name, wherever it comes from."""
    name = option.lower()
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


def may_hold_secret(path: Iterable[str | int]) -> bool:
    """Whether the value at a path may be or contain a secret: messages do not repeat it then."""
    return any(isinstance(part, str) and (is_secret(part) or part in _SECRET_KEYS) for part in path)


def reveal(settings: Mapping[str, str | SecretStr]) -> dict[str, str]:
    """Settings with their secrets in the open, for the client that needs them. Not for a message or a log."""
    return {
        name: RevealedSecret(value.get_secret_value()) if isinstance(value, SecretStr) else value
        for name, value in settings.items()
    }


def secret_names(settings: Mapping[str, str]) -> list[str]:
    """Which of some revealed settings are secrets: by their names, or because a reference gave them."""
    return [name for name, value in settings.items() if isinstance(value, RevealedSecret) or is_secret(name)]


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
        raise wrong("expected a path, got empty text")
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
    by_reference = isinstance(value, FromReference) and name not in _PLAIN_BY_REFERENCE
    if isinstance(value, str) and (by_reference or is_secret(name)):
        return SecretStr(str(value))
    return str(value) if isinstance(value, FromReference) else value


def _check_dotted(text: str) -> str:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise wrong("expected module.function, in a file next to the pipeline file", "such as rules.clean for rules.py")
    return text


def _to_pairs(value: Any) -> Any:
    return (
        {name: name for name in value} if isinstance(value, list) and all(isinstance(n, str) for n in value) else value
    )


Name = Annotated[str, AfterValidator(_check_name)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]
Count = Annotated[int, Field(ge=1)]
Dotted = Annotated[Text, AfterValidator(_check_dotted)]
Pairs = Annotated[
    dict[Text, Text],
    BeforeValidator(_to_pairs),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": "string"}},
            ]
        }
    ),
]
Location = Annotated[str, AfterValidator(_to_location)]
Duration = Annotated[
    timedelta,
    BeforeValidator(_to_duration),
    WithJsonSchema({"type": "string", "examples": ["500 ms", "10 seconds", "2 minutes", "1 hour"]}),
]
Secret = Annotated[SecretStr, SecretKind.SECRET]
SecretUrl = Annotated[SecretStr, SecretKind.URL]
Size = Annotated[
    int,
    BeforeValidator(_to_size),
    Field(ge=1, le=LARGEST),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["10 MiB"]}),
]
Settings = Annotated[
    dict[str, Annotated[str | SecretStr, SecretKind.SETTING]],
    BeforeValidator(_to_settings),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "integer", "number", "boolean"]}}),
]
