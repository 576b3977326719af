"""Pydantic's refusals in our words: what was given, what is expected, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from penstock.config.fields import BESIDE, may_hold_secret
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import Path, Positions, did_you_mean
from penstock.config.transforms import KINDS

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


def keys_at(loc: Path) -> tuple[str, ...]:
    """The keys known where pydantic found one that is not. `loc` is pydantic's own, with the unions' tags."""
    model: type[BaseModel] = PipelineConfig
    candidates: list[type[BaseModel]] = [PipelineConfig]
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
