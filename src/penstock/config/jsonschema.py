"""The JSON Schema of the pipeline file as users write it, for editors."""

from __future__ import annotations

import json
from typing import Any

from penstock.config.pipeline import PipelineConfig

SCHEMA_ID = "urn:penstock:pipeline:1"
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):"}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a pipeline file."""
    schema = _as_written(PipelineConfig.model_json_schema(by_alias=True, mode="validation"))
    one_of = [{"required": [key]} for key in ("topics", "pattern", "assign")]
    schema["$defs"]["KafkaSourceConfig"]["oneOf"] = one_of
    backup = schema["properties"]["checkpoint_backup"]
    short = {"type": "string", "pattern": "^every ", "examples": ["every 6 hours"]}
    schema["properties"]["checkpoint_backup"] = {
        "description": backup.pop("description"),
        "anyOf": [short, backup],
    }
    schema["oneOf"] = [{"required": ["source", "decode"]}, {"required": ["sources"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "Penstock pipeline",
    }


def json_schema_text() -> str:
    """The JSON Schema as the text of a file."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _as_written(node: Any) -> Any:
    """Leave out what the file cannot say (null), and let a reference stand for a number, a flag or a choice."""
    if isinstance(node, list):
        return [_as_written(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _as_written(value) for key, value in node.items() if not (key == "default" and value is None)}
    node.pop("discriminator", None)
    if isinstance(node.get("anyOf"), list):
        node["anyOf"] = [option for option in node["anyOf"] if option != {"type": "null"}]
        if len(node["anyOf"]) == 1:
            node |= node.pop("anyOf")[0]
    if node.get("type") in ("integer", "boolean") or ("enum" in node and "const" not in node):
        about = {key: node.pop(key) for key in ("title", "description", "default", "examples") if key in node}
        return about | {"anyOf": [node, _REFERENCE]}
    return node
