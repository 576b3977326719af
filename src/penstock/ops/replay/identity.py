"""What makes two replays the same: the pipeline, the ranges, the targets, and the definition of the rows.

The identity is part of the name under which the targets keep a replay's position, so that a target itself says whether
a replay was done, also where nothing else remembers it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.assembly.build import Pipeline
from penstock.assembly.schemas import read_schema_file
from penstock.assembly.user_code import code_behind
from penstock.config import PipelineConfig
from penstock.errors import PenstockError
from penstock.model import OffsetRange
from penstock.ops.replay.targets import TargetChoice, place_of

_OF_SINKS = (
    *("type", "mode", "select", "where", "keys", "when_newer", "delete_when", "insert_only", "coordinates", "evolve"),
    *("key", "value", "headers", "partition"),
)
"""The settings of a sink that decide which rows it has. Where it writes is in the target."""
_NOT_ROWS = ("registry", "security", "catalog", "refresh", "memory")
"""How something is reached, with its secrets, and what is only about speed."""
_FILES = ("schema_file", "descriptor_file", "writer_files")


def replay_id(
    live: Pipeline, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str], targets: Sequence[TargetChoice]
) -> str:
    """The same text for the same replay, and another for any other one."""
    config = live.config
    places = {sink.name: place_of(sink) for sink in config.sinks}
    body = {
        "pipeline": config.name,
        "topics": {r.topic: topic_ids.get(r.topic) for r in ranges},
        "ranges": [[r.topic, r.partition, r.start, r.end] for r in sorted(ranges)],
        "targets": [[one.sink, one.way.name, one.into or places[one.sink]] for one in targets],
        "definition": _definition(config, [one.sink for one in targets]),
        "schemas": sorted([str(place), schema.id] for place, schema in live.schemas.items()),
    }
    return digest(json.dumps(body, sort_keys=True, default=str))[:16]


def digest(text: str) -> str:
    """A text as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _definition(config: PipelineConfig, sinks: Sequence[str]) -> dict[str, Any]:
    """What decides the rows of these sinks, without secrets."""
    mine = config.model_dump(mode="json")
    return {
        **{part: _plain(mine[part]) for part in ("decode", "transforms", "routes", "tables")},
        "sinks": [
            {name: _plain(sink[name]) for name in _OF_SINKS if name in sink}
            for sink in mine["sinks"]
            if sink["name"] in sinks
        ],
        "code": sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in code_behind(config)),
    }


def _plain(part: Any) -> Any:
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _plain(value) for name, value in part.items() if name not in _NOT_ROWS}
    return {name: _contents(value) if name in _FILES else value for name, value in kept.items()}


def _contents(files: Any) -> Any:
    """Files by what they hold; by their names where they cannot be read here."""
    if isinstance(files, list):
        return [_contents(file) for file in files]
    try:
        return hashlib.sha256(read_schema_file(files)).hexdigest() if isinstance(files, str) else files
    except (OSError, PenstockError):
        return files
