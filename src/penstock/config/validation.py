"""Values to models. What pydantic refuses becomes a problem with its place in the file, in our words.

A misspelt key is reported once and then read as the key it was meant to be, so that what else is wrong is
found in the same go.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from penstock.config.decode import DecodeConfig
from penstock.config.fields import BESIDE, Section, may_hold_secret, models_of, tags_of, walk
from penstock.config.pipeline import PipelineConfig
from penstock.config.problems import Path, Positions, did_you_mean, suggest
from penstock.config.sinks import SinkConfig
from penstock.config.tables import LookupConfig
from penstock.config.transforms import KINDS
from penstock.config.yaml_source import Document, put, read_plain, value_at

_LISTS = ("transforms", "routes", "sinks")
_NAMED = ("sources", "tables")
Model = TypeVar("Model", bound=Section)


def validate(file: Document, model: type[Model], folder: FilePath) -> Model | None:
    """The model of a file; None if there are problems, all of which are reported."""
    while True:
        try:
            return model.model_validate(file.data, context={"folder": folder})
        except ValidationError as error:
            errors = error.errors(include_url=False)
        repaired = [_repair(file, model, found) for found in errors]
        if not any(repaired):
            _report_all(file, errors)
            return None


def valid_parts(file: Document, folder: FilePath) -> dict[str, Any]:
    """Each part of a pipeline file validated separately, for lists and mappings each entry; None if refused."""
    context = {"folder": folder}

    def valid(name: str, data: Any) -> Any:
        try:
            return _adapter(name).validate_python(data, context=context)
        except ValidationError:
            return None

    found: dict[str, Any] = {}
    for name in PipelineConfig.model_fields.keys() & file.data.keys():
        data = file.data[name]
        if name in _NAMED:
            found[name] = {key: valid(name, item) for key, item in data.items()} if isinstance(data, dict) else {}
        elif name in _LISTS:
            # A value that is not a list counts as one refused entry: nothing is known about it.
            found[name] = tuple(valid(name, item) for item in data) if isinstance(data, list) else (None,)
        else:
            found[name] = valid(name, data)
    return found


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """The validator of a part, or of an entry. It is built once: building all takes longer than loading a file."""
    kind = PipelineConfig.model_fields[name].rebuild_annotation()
    arguments = get_args(PipelineConfig.model_fields[name].annotation)
    return TypeAdapter(arguments[1] if name in _NAMED else arguments[0] if name in _LISTS else kind)


def _repair(file: Document, model: type[Section], error: Any) -> bool:
    """Correct what can be, so that the next try finds what else is wrong. Unknown keys are reported here."""
    path = path_of(file.data, error)
    value = value_at(file.data, path)
    if error["type"] in ("int_type", "bool_type") and path in file.filled and isinstance(value, str):
        parsed = read_plain(value)
        if isinstance(parsed, int):
            put(file.data, path, parsed)
            return True
    if error["type"] != "extra_forbidden":
        return False
    known = _known_keys(file, model, path[:-1])
    name = str(path[-1])
    holder = value_at(file.data, path[:-1])
    meant = suggest(name, [key for key in known if key not in holder])
    context = () if meant else (f"known keys: {', '.join(known)}",)
    file.report(path, f'unknown key "{name}"', context=context, hint=did_you_mean(name, known), at_key=True)
    if meant:
        holder[meant] = holder.pop(name)
        _move(file, path, (*path[:-1], meant))
    else:
        del holder[name]
    return True


def _known_keys(file: Document, root: type[Section], path: Path) -> list[str]:
    section = next((model for at, model, _ in walk(root, file.data, None) if at == path), root)
    keys = [field.alias or name for name, field in section.model_fields.items()]
    return sorted(keys, key=lambda key: key not in ("name", "type", "format"))


def _move(file: Document, old: Path, new: Path) -> None:
    """Give the intended key the positions of the misspelt one."""
    for spots in (file.positions.values, file.positions.keys):
        spots.update({(*new, *path[len(old) :]): spot for path, spot in spots.items() if path[: len(old)] == old})
    file.filled |= {(*new, *path[len(old) :]) for path in file.filled if path[: len(old)] == old}


def _report_all(file: Document, errors: list[Any]) -> None:
    seen: set[Path] = set()
    paths = [path_of(file.data, error) for error in errors]
    for error, path in zip(errors, paths, strict=True):
        value = value_at(file.data, path)
        if error["type"] == "string_type" and any(path == other[: len(path)] != other for other in paths):
            continue  # Text or a section: it is a section, and the errors inside say what is wrong with it.
        if error["type"] == "too_short" and value:
            continue  # Pydantic counts only the entries that are valid; those that are not have their own error.
        message, context, hint = word(error, path, value, file.positions, path in file.filled)
        step = is_step(path)
        if error["type"].startswith("union_tag") and not step and isinstance(value, dict):
            path = (*path, tag_key(path))
        elif error["type"] == "union_tag_invalid":
            path = (*path, *(key for key in value if key not in BESIDE))
        # A union gives an error for each of its members: the first is about the one that was likely meant.
        if path not in seen:
            seen.add(path)
            at_key = error["type"] == "union_tag_invalid" and step
            file.report(path, message, context=context, hint=hint, at_key=at_key)


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
    if value is None and kind != "missing":
        return "the value is missing", (), "add one, or remove the key"
    given = _given(path, value, positions)
    if kind in _EXPECTED:
        return (
            f"expected {_EXPECTED[kind]}, got {given}",
            (),
            _type_hint(kind, path, value, positions, filled),
        )
    match kind:
        case "missing":
            return "this key is required", (), None
        case "penstock":
            said = isinstance(value, dict | list) or may_hold_secret(path) or positions.written(path) in ctx["message"]
            return ctx["message"], () if said else (f"given: {given}",), ctx["hint"]
        case "literal_error":
            words = [part.strip("' ") for part in ctx["expected"].replace(" or ", ",").split(",")]
            return f"{given} is not one of {', '.join(words)}", (), did_you_mean(str(value), words)
        case "greater_than_equal":
            return f"must be at least {ctx['ge']}, got {given}", (), None
        case "too_short":
            return "needs at least one entry", (), None
        case "string_too_short":
            return "the text is empty", (), None
        case "union_tag_not_found" | "union_tag_invalid":
            return _word_tag(path, value)
    return f"{error['msg'][0].lower()}{error['msg'][1:]}, got {given}", (), None


def _word_tag(path: Path, value: Any) -> Wording:
    """For a section whose kind decides its keys: a sink's type, a format, a transform."""
    if is_step(path):
        kinds = ", ".join(KINDS)
        if not isinstance(value, dict):
            return f"expected one of {kinds}, got {_shown(value)}", (), "write it as - where: ..."
        keys = [key for key in value if key not in BESIDE]
        if len(keys) == 1:
            return f'"{keys[0]}" is not a transform', (f"transforms: {kinds}",), did_you_mean(keys[0], KINDS)
        beside = " next to its name" if "name" in value else ""
        message = f"a transform has exactly one key{beside}, got {', '.join(keys) or 'none'}"
        return message, (f"transforms: {kinds}",), "start each step with its own dash"
    key = tag_key(path)
    union = {"sinks": SinkConfig, "tables": LookupConfig}.get(str(path[0]), DecodeConfig)
    tags = list(dict.fromkeys(tag for model in models_of(union) for tag in tags_of(model)[1]))
    if not isinstance(value, dict):
        return f"expected a mapping, got {_shown(value)}", (), f"write {{{key}: ..., ...}}"
    if key not in value:
        return "this key is required", (f"one of: {', '.join(tags)}",), None
    given = str(value[key])
    return f'"{given}" is not one of {", ".join(tags)}', (), did_you_mean(given, tags)


def tag_key(path: Path) -> str:
    """The key that selects one of several kinds of a section."""
    return "type" if path[0] in ("sinks", "tables") else "format"


def is_step(path: Path) -> bool:
    """Whether a path names one step of a pipeline or of a route."""
    return len(path) > 1 and path[-2] == "transforms"


def _type_hint(kind: str, path: Path, value: Any, positions: Positions, filled: bool) -> str | None:
    written = positions.written(path)
    if filled and kind == "tuple_type":
        return "a reference is a single value: put it inside the list"
    if filled:
        return "check the value of the reference"
    if kind == "string_type" and isinstance(value, bool | int | float) and may_hold_secret(path):
        return "write secrets as references: ${env:NAME} or ${file:path}"
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
    """The text of the file, never the value of a reference; for a secret only its kind."""
    if isinstance(value, dict | list) or may_hold_secret(path) or path not in positions.values:
        return _shown(value)
    written = positions.written(path)
    return f'"{written}"' if isinstance(value, str) else written


def _shown(value: Any) -> str:
    for kind, name in ((dict, "a mapping"), (list, "a list"), (bool, "true or false"), (str, "text")):
        if isinstance(value, kind):
            return name
    return "a number"
