"""A registered Avro schema with its references put in, so that its text stands alone."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from penstock.decoders.avro.schema import PRIMITIVES, UnsupportedSchemaError
from penstock.errors import DefinitionError
from penstock.registry import RegisteredSchema

_NAMED = ("record", "error", "enum", "fixed")


@lru_cache(maxsize=1024)
def avro_reader(schema: RegisteredSchema) -> str:
    """The schema's text; what it refers to is put in where it is first named. Raises `DefinitionError` AVRO_SCHEMA."""
    if not schema.references:
        return schema.text
    try:
        return inline(schema.text, [reference.text for reference in schema.references])
    except UnsupportedSchemaError as error:
        raise DefinitionError("AVRO_SCHEMA", f"schema id {schema.id}: {error}") from None


def inline(text: str, references: list[str]) -> str:
    """`text` with the types of `references`, which may refer to those before them. Raises `UnsupportedSchemaError`."""
    try:
        types: dict[str, Any] = {}
        for reference in references:
            found = _absolute(json.loads(reference), "")
            for part in found if isinstance(found, list) else [found]:
                if isinstance(part, dict) and part.get("type") in _NAMED:
                    types[part["name"]] = part
        return json.dumps(_put_in(_absolute(json.loads(text), ""), types, set()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        said = str(exc)[:200]
        raise UnsupportedSchemaError(f"the schema or one it refers to is not valid: {said}") from None


def _absolute(schema: Any, namespace: str) -> Any:
    """The schema with every name in full."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full(schema, namespace)
    if isinstance(schema, list):
        return [_absolute(branch, namespace) for branch in schema]
    kind = schema["type"]
    if kind in _NAMED if isinstance(kind, str) else False:
        name = _full(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        found = {key: value for key, value in schema.items() if key != "namespace"} | {"name": name}
        if "aliases" in schema:
            found["aliases"] = [_full(alias, inner) for alias in schema["aliases"] or ()]
        if "fields" in schema:
            found["fields"] = [field | {"type": _absolute(field["type"], inner)} for field in schema["fields"]]
        return found
    found = dict(schema)
    for key in ("items", "values"):
        if key in found:
            found[key] = _absolute(found[key], namespace)
    if kind not in ("array", "map") if isinstance(kind, str) else True:
        found["type"] = _absolute(kind, namespace)
    return found


def _put_in(schema: Any, types: dict[str, Any], defined: set[str]) -> Any:
    """The schema with each type of `types` where it is first named."""
    if isinstance(schema, str):
        if schema in types and schema not in defined:
            return _put_in(types[schema], types, defined)
        return schema
    if isinstance(schema, list):
        return [_put_in(branch, types, defined) for branch in schema]
    if "name" in schema:
        defined.add(schema["name"])
    found = dict(schema)
    if "fields" in found:
        found["fields"] = [field | {"type": _put_in(field["type"], types, defined)} for field in found["fields"]]
    for key in ("items", "values"):
        if key in found:
            found[key] = _put_in(found[key], types, defined)
    if found["type"] not in (*_NAMED, "array", "map") if isinstance(found["type"], str) else True:
        found["type"] = _put_in(found["type"], types, defined)
    return found


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
