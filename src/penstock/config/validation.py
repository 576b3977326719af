"""Values to models. What pydantic refuses becomes a problem with its place in the file, in our words.

A misspelt key is reported once and then read as the key it was meant to be, so that what else is wrong is
found in the same go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from penstock.config.alerts import AlertsConfig
from penstock.config.connections import StorageConfig
from penstock.config.decode import DecodeConfig
from penstock.config.fields import BESIDE, Location, Settings, may_hold_secret
from penstock.config.operation import CheckpointBackup, ClusterConfig, FlowConfig, MaintenanceConfig, MetricsConfig
from penstock.config.parts import Parts
from penstock.config.pipeline import NamedSourceConfig, PipelineConfig, QuarantineConfig, RouteConfig, TriggerConfig
from penstock.config.problems import Path, Positions, did_you_mean, suggest
from penstock.config.sinks import SinkConfig
from penstock.config.source import KafkaSourceConfig
from penstock.config.tables import LookupConfig
from penstock.config.transforms import KINDS, TransformConfig
from penstock.config.yaml_source import put, read_plain, value_at

_PARTS: Mapping[str, Any] = {
    "source": KafkaSourceConfig,
    "decode": DecodeConfig,
    "quarantine": QuarantineConfig,
    "checkpoint": Location,
    "checkpoint_backup": CheckpointBackup,
    "maintenance": MaintenanceConfig,
    "storage": StorageConfig,
    "trigger": TriggerConfig,
    "flow": FlowConfig,
    "metrics": MetricsConfig,
    "alerts": AlertsConfig,
    "spark": Settings,
    "cluster": ClusterConfig,
}
_LISTS: Mapping[str, Any] = {"transforms": TransformConfig, "routes": RouteConfig, "sinks": SinkConfig}
_NAMED: Mapping[str, Any] = {"sources": NamedSourceConfig, "tables": LookupConfig}


def validate(parts: Parts, folder: FilePath) -> PipelineConfig | None:
    """Fill the parts that are valid, report what is not, and return the pipeline if all of it is."""
    data, context = parts.file.data, {"folder": folder}
    while True:
        try:
            config = PipelineConfig.model_validate(data, context=context)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            repaired = [_repair(parts, found) for found in errors]
            if not any(repaired):
                break
            continue
        for name in (*_PARTS, *_LISTS, *_NAMED):
            setattr(parts, name, getattr(config, name))
        return config
    _report_all(parts, errors)
    _fill_valid(parts, context)
    return None


def _repair(parts: Parts, error: Any) -> bool:
    """Mend what can be, so that the next try finds what else is wrong. Unknown keys are reported here."""
    path, data = path_of(parts.file.data, error), parts.file.data
    value = value_at(data, path)
    if error["type"] in ("int_type", "bool_type") and path in parts.filled and isinstance(value, str):
        parsed = read_plain(value)
        if isinstance(parsed, int):
            put(data, path, parsed)
            return True
    if error["type"] != "extra_forbidden":
        return False
    known = keys_at(error["loc"][:-1])
    name = str(path[-1])
    holder = value_at(data, path[:-1])
    meant = suggest(name, [key for key in known if key not in holder])
    context = () if meant else (f"known keys: {', '.join(known)}",)
    parts.report(path, f'unknown key "{name}"', context=context, hint=did_you_mean(name, known), at_key=True)
    if meant:
        holder[meant] = holder.pop(name)
        _move(parts, path, (*path[:-1], meant))
    else:
        del holder[name]
    return True


def _move(parts: Parts, old: Path, new: Path) -> None:
    """Let a misspelt key's positions stand for the key that was meant."""
    positions = parts.file.positions
    for spots in (positions.values, positions.keys):
        moved = {(*new, *path[len(old) :]): spot for path, spot in spots.items() if path[: len(old)] == old}
        spots.update(moved)
    parts.filled |= {(*new, *path[len(old) :]) for path in parts.filled if path[: len(old)] == old}


def _report_all(parts: Parts, errors: list[Any]) -> None:
    seen: set[Path] = set()
    places = [path_of(parts.file.data, error) for error in errors]
    for error, path in zip(errors, places, strict=True):
        value = value_at(parts.file.data, path)
        if error["type"] == "string_type" and any(path == place[: len(path)] != place for place in places):
            continue  # Text or a section: it is a section, and the errors inside say what is wrong with it.
        if error["type"] == "too_short" and value:
            continue  # Pydantic counts only the entries that are valid; those that are not have their own error.
        message, context, hint = word(error, path, value, parts.file.positions, path in parts.filled)
        step = is_step(path)
        if error["type"].startswith("union_tag") and not step and isinstance(value, dict):
            path = (*path, tag_key(path))
        elif error["type"] == "union_tag_invalid":
            path = (*path, *(key for key in value if key not in BESIDE))
        # A union gives an error for each of its members: the first is about the one that was likely meant.
        if path not in seen:
            seen.add(path)
            at_key = error["type"] == "union_tag_invalid" and step
            parts.report(path, message, context=context, hint=hint, at_key=at_key)


def _fill_valid(parts: Parts, context: dict[str, FilePath]) -> None:
    """Validate every part by itself; what is refused stays None."""

    def valid(name: str, value: Any) -> Any:
        try:
            return _adapter(name).validate_python(value, context=context)
        except ValidationError:
            return None

    data = parts.file.data
    for name in _PARTS:
        if name in data:
            setattr(parts, name, valid(name, data[name]))
    for name in _NAMED:
        named = data.get(name)
        if isinstance(named, dict):
            setattr(parts, name, {key: valid(name, item) for key, item in named.items()})
    for name in _LISTS:
        items = data.get(name)
        # What is no list at all counts as one refused entry: nothing is known of what it should have said.
        refused = (None,) if items is not None else ()
        setattr(parts, name, tuple(valid(name, item) for item in items) if isinstance(items, list) else refused)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """The validator of a part. It is built once: building all of them takes longer than loading a file."""
    return TypeAdapter({**_PARTS, **_NAMED, **_LISTS}[name])


def path_of(data: Mapping[str, Any], error: Any) -> Path:
    """Pydantic's location as a path in the file: without the names of union members."""
    path: Path = ()
    here: Any = data
    for index, part in enumerate(error["loc"]):
        if is_step(path) and index < len(error["loc"]) - 1 and error["loc"][index - 1] == path[-1]:
            continue  # The kind of the step, which is also one of its keys.
        if (isinstance(here, dict) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            path, here = (*path, part), here[part]
        elif error["type"] == "missing" and index == len(error["loc"]) - 1:
            path = (*path, part)
    return path


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SHAPES: Mapping[str | int, str] = {
    "registry": "{url: ...}",
    "security": "{ca_file: ..., mechanism: SCRAM-SHA-512, username: ..., password: ...}",
    "key": "{format: ...}",
    "by_topic": "{TOPIC: {...}}",
    "webhook": "{url: ...}",
    "alerts": "{rules: [...], webhook: {url: ...}}",
    "metrics": "{port: 9400}",
    "flow": "{target_batch: 20 seconds}",
}
Wording = tuple[str, tuple[str, ...], str | None]
"""A message, the context lines, and the hint."""


def word(error: Any, path: Path, value: Any, positions: Positions, filled: bool) -> Wording:
    """The message, context and hint for one of pydantic's errors."""
    kind, ctx = error["type"], error.get("ctx", {})
    given = _given(path, value, positions)
    if kind in _EXPECTED:
        return (
            f"expected {_EXPECTED[kind]}, got {given}",
            (),
            _type_hint(kind, path, value, positions, filled),
        )
    match kind:
        case "missing":
            return "this key is required and missing", (), None
        case "penstock":
            said = isinstance(value, dict | list) or may_hold_secret(path) or positions.written(path) in ctx["message"]
            return ctx["message"], () if said else (f"given: {given}",), ctx["hint"]
        case "literal_error":
            words = [part.strip("' ") for part in ctx["expected"].replace(" or ", ",").split(",")]
            return f"{given} is not one of {', '.join(words)}", (), did_you_mean(str(value), words)
        case "greater_than_equal":
            return f"must be at least {ctx['ge']}, got {given}", (), None
        case "too_short":
            return "needs at least one entry, got none", (), None
        case "string_too_short":
            return "the text is empty", (), None
        case "union_tag_not_found" | "union_tag_invalid":
            return _word_tag(path, value)
    return f"{error['msg'][0].lower()}{error['msg'][1:]}, got {given}", (), None


def _word_tag(path: Path, value: Any) -> Wording:
    """For a part whose kind decides what it holds: a sink's type, a format, a transform."""
    if is_step(path):
        kinds = ", ".join(KINDS)
        if not isinstance(value, dict):
            return f"expected one of {kinds}, got {_shown(value)}", (), "write it as - where: ..."
        keys = [key for key in value if key not in BESIDE]
        if len(keys) == 1:
            return f'"{keys[0]}" is not a transform', (f"transforms: {kinds}",), did_you_mean(keys[0], KINDS)
        beside = " beside its name" if "name" in value else ""
        message = f"a transform has exactly one key{beside}, got {', '.join(keys) or 'none'}"
        return message, (f"transforms: {kinds}",), "start each step with its own dash"
    key = tag_key(path)
    decodes = "decode" if path[-1] == "decode" else str(path[0])
    models = _models(PipelineConfig.model_fields[decodes].annotation)
    tags = list(dict.fromkeys(tag for model in models if "kind" not in vars(model) for tag in _tags(model)))
    if not isinstance(value, dict):
        return f"expected a mapping, got {_shown(value)}", (), f"write {{{key}: ..., ...}}"
    if key not in value:
        return "this key is required and missing", (f"one of: {', '.join(tags)}",), None
    given = str(value[key])
    return f'"{given}" is not one of {", ".join(tags)}', (), did_you_mean(given, tags)


def tag_key(path: Path) -> str:
    """The key that says which of several kinds a section is."""
    return "type" if path[0] in ("sinks", "tables") else "format"


def is_step(path: Path) -> bool:
    """Whether a path names one step of a pipeline or of a route."""
    return len(path) > 1 and path[-2] == "transforms"


def _type_hint(kind: str, path: Path, value: Any, positions: Positions, filled: bool) -> str | None:
    written = positions.written(path)
    if filled and kind == "tuple_type":
        return "a reference gives one value: write it inside the list"
    if filled:
        return "check what the reference gives"
    if kind == "string_type" and isinstance(value, bool | int | float) and may_hold_secret(path):
        return "a secret comes by reference: ${env:NAME} or ${file:path}"
    if kind == "string_type" and isinstance(value, bool):
        return f'YAML reads {written} as {str(value).lower()}; quote it: "{written}"'
    if kind == "string_type" and isinstance(value, int | float):
        return f'quote it: "{written}"'
    if kind == "int_type" and isinstance(value, str) and value.isdecimal():
        return f"remove the quotes: {written}"
    if kind in ("model_type", "model_attributes_type", "dict_type") and path[-1] in _SHAPES:
        return f"write {path[-1]}: {_SHAPES[path[-1]]}"
    if kind == "tuple_type" and isinstance(value, dict):
        return "start each entry with a dash"
    if kind == "tuple_type" and isinstance(value, str):
        return f"write [{written}]"
    return None


def _given(path: Path, value: Any, positions: Positions) -> str:
    """What the file says, never what a reference gave; of a secret only its kind."""
    if isinstance(value, dict | list) or may_hold_secret(path) or path not in positions.values:
        return _shown(value)
    written = positions.written(path)
    return f'"{written}"' if isinstance(value, str) else written


def _shown(value: Any) -> str:
    for kind, name in ((dict, "a mapping"), (list, "a list"), (bool, "true or false"), (str, "text")):
        if isinstance(value, kind):
            return name
    return "a number"


def keys_at(loc: Path, model: type[BaseModel] = PipelineConfig) -> tuple[str, ...]:
    """The keys known where pydantic found one that is not. `loc` is pydantic's own, with the unions' tags."""
    candidates = [model]
    for part in loc:
        by_tag = [candidate for candidate in candidates if part in (*_tags(candidate), candidate.__name__)]
        field = _fields(model).get(str(part))
        if by_tag and len(candidates) > 1:
            candidates = by_tag
        elif field is not None:
            candidates = list(_models(field))
        model = candidates[0] if candidates else model
    return tuple(sorted(_fields(model), key=lambda name: name not in ("name", "type", "format")))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """The values that choose this model: of `type` or `format`, or its kind of transform."""
    for name in ("type", "format"):
        field = model.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is Literal:
            return get_args(field.annotation)
    kind = getattr(model, "kind", None)
    return (kind,) if isinstance(kind, str) else ()
