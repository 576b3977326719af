"""Manifests as JSON: what a batch staged, for a commit by a later process, which may run a later version.

`{"version": 1, "manifests": [...]}`. A dataclass is an object with its fields and its name under `$type`, as is a value
that JSON has no type for. That name is given by `stored_as`, so that a class can be renamed or moved.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from penstock.model.staging import Manifest, SlotAttempt

_VERSION = 1
_TYPE = "$type"

Item = TypeVar("Item")


def manifests_to_json(manifests: Sequence[Manifest]) -> str:
    """The manifests as one line of JSON."""
    body = {"version": _VERSION, "manifests": [_to_plain(manifest) for manifest in manifests]}
    return json.dumps(body, separators=(",", ":"))


def manifests_from_json(text: str | bytes) -> list[Manifest] | None:
    """The manifests that `manifests_to_json` wrote; None if the text is damaged or has another version."""
    try:
        body = json.loads(text)
        return list(map(_from_plain, body["manifests"])) if body["version"] == _VERSION else None
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None


def stored_as(name: str) -> Callable[[type[Item]], type[Item]]:
    """Give a dataclass of staged items its name in the JSON. This name and those of the fields must never change."""

    def register(kind: type[Item]) -> type[Item]:
        _CLASSES[name] = kind
        return kind

    return register


_CLASSES: dict[str, Any] = {"manifest": Manifest, "attempt": SlotAttempt}
_VALUES: dict[str, tuple[type, Callable[[Any], object], Callable[[Any], object]]] = {
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "list": (list, lambda values: list(map(_to_plain, values)), lambda values: list(map(_from_plain, values))),
    "set": (frozenset, lambda values: _to_plain(tuple(sorted(values))), lambda values: frozenset(_from_plain(values))),
    "map": (dict, lambda entries: _to_plain(tuple(entries.items())), lambda entries: dict(_from_plain(entries))),
}


def _to_plain(value: Any) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return list(map(_to_plain, value))
    for name, kind in _CLASSES.items():
        if type(value) is kind:
            return {_TYPE: name, **{field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}}
    for name, (kind, to_plain, _) in _VALUES.items():
        if type(value) is kind:
            return {_TYPE: name, "value": to_plain(value)}
    raise TypeError(f"{type(value).__qualname__} has no stored form: name it by `stored_as`")


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    if not isinstance(value, dict):
        return value
    name = value[_TYPE]
    if name in _VALUES:
        return _VALUES[name][2](value["value"])
    return _CLASSES[name](**{field: _from_plain(each) for field, each in value.items() if field != _TYPE})
