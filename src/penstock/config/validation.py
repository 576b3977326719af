"""Values to models. What pydantic refuses becomes a problem with its place in the file.

A misspelt key is reported once and then read as the key it was meant to be, so that what else is wrong is
found in the same go.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from penstock.config.alerts import AlertsConfig
from penstock.config.connections import StorageConfig
from penstock.config.decode import DecodeConfig
from penstock.config.fields import BESIDE, Location, Settings
from penstock.config.operation import CheckpointBackup, ClusterConfig, FlowConfig, MaintenanceConfig, MetricsConfig
from penstock.config.parts import Parts
from penstock.config.pipeline import PipelineConfig, QuarantineConfig, RouteConfig, TriggerConfig
from penstock.config.problems import Path, did_you_mean, suggest
from penstock.config.sinks import SinkConfig
from penstock.config.source import KafkaSourceConfig
from penstock.config.sources import NamedSourceConfig
from penstock.config.tables import LookupConfig
from penstock.config.transforms import TransformConfig
from penstock.config.wording import is_step, keys_at, tag_key, word
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
