"""Avro schemas: JSON text in, a tree of frozen nodes out, names resolved, what no table can hold refused.

A name that is used twice is the same node twice.

A schema that contains itself has no columns, and one that unfolds into more than `MAX_NODES` nodes or `MAX_DEPTH`
levels is taken for an attack; both are refused here, before anything is made of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 10_000
# The native reader counts the branches of a union in a signed byte.
_MAX_BRANCHES = 127

NAMED = ("record", "error", "enum", "fixed")
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

_LOGICAL_TYPES = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    },
    "string": {"uuid"},
    "fixed": {"duration", "uuid"},
}
_FIXED_SIZES = {"duration": 12, "uuid": 16}


@dataclass(frozen=True)
class Primitive:
    """A type without a name; `logical` is empty without a known logical type."""

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Enum:
    """One of some symbols; a reader that has a default takes it for a symbol that it does not know."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True)
class Array:
    """Any number of items."""

    items: Node


@dataclass(frozen=True)
class Map:
    """Values by strings."""

    values: Node


@dataclass(frozen=True)
class Union:
    """One of several types, each of which may be there once."""

    branches: tuple[Node, ...]

    @property
    def nullable(self) -> bool:
        """Whether one of the types is null."""
        return NULL in self.branches

    @property
    def values(self) -> tuple[Node, ...]:
        """The types that are not null."""
        return tuple(branch for branch in self.branches if branch != NULL)


@dataclass(frozen=True)
class Field:
    """A field of a record. `default` is JSON, and counts only with `has_default`."""

    name: str
    aliases: tuple[str, ...]
    type: Node
    has_default: bool
    default: str


@dataclass(frozen=True)
class Record:
    """Fields in the order in which they are written."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]


Node = Primitive | Fixed | Enum | Array | Map | Union | Record

NULL = Primitive("null")


def describe(node: Node) -> str:
    """A node in a few words, for messages."""
    match node:
        case Primitive():
            logical = f"{node.logical}({node.precision}, {node.scale})" if node.logical == "decimal" else node.logical
            return f"{node.kind} ({logical})" if logical else node.kind
        case Fixed():
            return f"fixed {node.name} of {node.size} bytes"
        case Enum():
            return f"enum {node.name}"
        case Array():
            return f"array of {describe(node.items)}"
        case Map():
            return f"map of {describe(node.values)}"
        case Union():
            return f"union of {', '.join(map(describe, node.branches))}"
        case Record():
            return f"record {node.name}"


class UnsupportedSchemaError(Exception):
    """The schema is not valid, or not one that columns can be made of; the message says where and why."""


@lru_cache(maxsize=1024)
def parse_avro(text: str) -> Node:
    """The tree of a schema. Raises `UnsupportedSchemaError`."""
    try:
        schema = json.loads(text)
        # JSON may escape half a character, and no name or default can have one.
        json.dumps(schema, ensure_ascii=False).encode()
        return _Parser().read(schema, "", "", 0).node
    except ValueError as exc:
        raise UnsupportedSchemaError(f"the schema is no JSON: {ascii(str(exc)[:200])[1:-1]}") from None
    except RecursionError:
        raise UnsupportedSchemaError(f"the schema is nested more than {MAX_DEPTH} levels deep") from None


@dataclass(frozen=True, slots=True)
class _Read:
    """A node with the number of nodes and levels that it unfolds into."""

    node: Node
    nodes: int
    height: int


class _Parser:
    def __init__(self) -> None:
        self._known: dict[str, _Read] = {}
        self._open: set[str] = set()
        self._count = 0

    def read(self, schema: Any, namespace: str, path: str, depth: int) -> _Read:
        found = self._read(schema, namespace, path, depth)
        if depth + found.height > MAX_DEPTH:
            raise UnsupportedSchemaError(f"{_at(path)}nested more than {MAX_DEPTH} levels deep")
        if found.nodes > MAX_NODES:
            raise UnsupportedSchemaError(f"{_at(path)}unfolds into more than {MAX_NODES} types")
        return found

    def _read(self, schema: Any, namespace: str, path: str, depth: int) -> _Read:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnsupportedSchemaError(f"{_at(path)}has more than {MAX_NODES} types")
        if depth > MAX_DEPTH:
            raise UnsupportedSchemaError(f"{_at(path)}nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, str):
            return self._named(schema, namespace, path)
        if isinstance(schema, list):
            return self._union(schema, namespace, path, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise UnsupportedSchemaError(f"{_at(path)}a type is a name, an array or an object with a type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._read(kind, namespace, path, depth + 1)
        match kind:
            case "record" | "error":
                return self._record(schema, namespace, path, depth)
            case "enum":
                return self._enum(schema, namespace, path)
            case "fixed":
                return self._fixed(schema, namespace, path)
            case "array":
                items = self.read(_part(schema, "items", path), namespace, f"{path}[]", depth + 1)
                return _Read(Array(items.node), items.nodes + 1, items.height + 1)
            case "map":
                values = self.read(_part(schema, "values", path), namespace, f"{path}{{}}", depth + 1)
                return _Read(Map(values.node), values.nodes + 1, values.height + 1)
            case _ if kind in PRIMITIVES:
                return _Read(Primitive(kind, *_logical(schema, kind, None)), 1, 0)
            case _:
                return self._named(kind, namespace, path)

    def _named(self, name: str, namespace: str, path: str) -> _Read:
        if name in PRIMITIVES:
            return _Read(Primitive(name), 1, 0)
        for full in (full_name(name, namespace), name):
            if full in self._open:
                raise UnsupportedSchemaError(f"{_at(path)}record {full} contains itself, which no table can hold")
            if full in self._known:
                return self._known[full]
        raise UnsupportedSchemaError(f"{_at(path)}there is no type {name}")

    def _union(self, branches: list[Any], namespace: str, path: str, depth: int) -> _Read:
        if not 0 < len(branches) <= _MAX_BRANCHES:
            raise UnsupportedSchemaError(
                f"{_at(path)}a union of {len(branches)} types, and 1 to {_MAX_BRANCHES} are possible"
            )
        read = [self.read(branch, namespace, path, depth + 1) for branch in branches]
        kinds = [_branch_key(part.node) for part in read]
        if len(set(kinds)) < len(kinds) or "union" in kinds:
            raise UnsupportedSchemaError(f"{_at(path)}a union with a type twice, or with a union in it")
        return _Read(Union(tuple(part.node for part in read)), *_sums(read))

    def _record(self, schema: dict[str, Any], namespace: str, path: str, depth: int) -> _Read:
        name, aliases, inner = self._name(schema, namespace, path)
        self._open.add(name)
        fields, read = [], []
        for field in _list(schema, "fields", path):
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise UnsupportedSchemaError(f"{_at(path)}a field is an object with a name and a type")
            step = f"{path}.{field['name']}" if path else field["name"]
            part = self.read(_part(field, "type", step), inner, step, depth + 1)
            others = _texts(field, "aliases", step)
            default = json.dumps(field.get("default"))
            fields.append(Field(field["name"], others, part.node, "default" in field, default))
            read.append(part)
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise UnsupportedSchemaError(f"{_at(path)}record {name} has a field twice")
        self._open.discard(name)
        return self._keep(name, _Read(Record(name, aliases, tuple(fields)), *_sums(read)), path)

    def _enum(self, schema: dict[str, Any], namespace: str, path: str) -> _Read:
        name, aliases, _ = self._name(schema, namespace, path)
        symbols = _texts(schema, "symbols", path)
        default = schema.get("default")
        if not symbols or len(set(symbols)) < len(symbols) or (default is not None and default not in symbols):
            raise UnsupportedSchemaError(f"{_at(path)}enum {name} needs symbols, each once, its default among them")
        return self._keep(name, _Read(Enum(name, aliases, symbols, default), 1, 0), path)

    def _fixed(self, schema: dict[str, Any], namespace: str, path: str) -> _Read:
        name, aliases, _ = self._name(schema, namespace, path)
        size = _part(schema, "size", path)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= 1_000_000:
            raise UnsupportedSchemaError(f"{_at(path)}fixed {name} has no possible size")
        return self._keep(name, _Read(Fixed(name, aliases, size, *_logical(schema, "fixed", size)), 1, 0), path)

    def _name(self, schema: dict[str, Any], namespace: str, path: str) -> tuple[str, tuple[str, ...], str]:
        name = _part(schema, "name", path)
        if not isinstance(name, str):
            raise UnsupportedSchemaError(f"{_at(path)}a name is a string")
        given = schema.get("namespace", namespace) or ""
        if not isinstance(given, str):
            raise UnsupportedSchemaError(f"{_at(path)}a namespace is a string")
        full = full_name(name, given)
        inner = full.rpartition(".")[0]
        return full, tuple(full_name(alias, inner) for alias in _texts(schema, "aliases", path)), inner

    def _keep(self, name: str, read: _Read, path: str) -> _Read:
        if name in self._known:
            raise UnsupportedSchemaError(f"{_at(path)}the name {name} is given twice")
        self._known[name] = read
        return read


def _logical(schema: dict[str, Any], kind: str, size: int | None) -> tuple[str, int, int]:
    """The logical type; as the specification wants it, one that is unknown or does not fit counts for none."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0:
            return "decimal", precision, scale
    if not isinstance(logical, str) or logical not in _LOGICAL_TYPES.get(kind, ()):
        return "", 0, 0
    if size is None or size == _FIXED_SIZES[logical]:
        return logical, 0, 0
    return "", 0, 0


def _part(schema: dict[str, Any], key: str, path: str) -> Any:
    if key not in schema:
        raise UnsupportedSchemaError(f"{_at(path)}the type has no {key}")
    return schema[key]


def _list(schema: dict[str, Any], key: str, path: str) -> list[Any]:
    found = _part(schema, key, path)
    if not isinstance(found, list):
        raise UnsupportedSchemaError(f"{_at(path)}{key} is no array")
    return found


def _texts(schema: dict[str, Any], key: str, path: str) -> tuple[str, ...]:
    """An array of strings, which may be left out."""
    found = schema.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UnsupportedSchemaError(f"{_at(path)}{key} is no array of strings")
    return tuple(found)


def _branch_key(node: Node) -> str:
    match node:
        case Primitive():
            return node.kind
        case Fixed() | Enum() | Record():
            return f"named {node.name}"
        case _:
            return type(node).__name__.lower()


def _sums(parts: list[_Read]) -> tuple[int, int]:
    return 1 + sum(part.nodes for part in parts), 1 + max((part.height for part in parts), default=0)


def full_name(name: str, namespace: str | None) -> str:
    """The name with its namespace."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _at(path: str) -> str:
    return f"field {path[:200]}: " if path else ""


# Schemas that refer to others, inlined.


def inline(text: str, references: list[str]) -> str:
    """`text` with the types of `references`, which may refer to those before them. Raises `UnsupportedSchemaError`."""
    try:
        types: dict[str, Any] = {}
        for reference in references:
            found = _absolute(json.loads(reference), "")
            for part in found if isinstance(found, list) else [found]:
                if isinstance(part, dict) and part.get("type") in NAMED:
                    types[part["name"]] = part
        return json.dumps(_put_in(_absolute(json.loads(text), ""), types, set()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UnsupportedSchemaError(f"the schema or one it refers to is not valid: {str(exc)[:200]}") from None


def _absolute(schema: Any, namespace: str) -> Any:
    """The schema with every name in full."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else full_name(schema, namespace)
    if isinstance(schema, list):
        return [_absolute(branch, namespace) for branch in schema]
    kind = schema["type"]
    if kind in NAMED if isinstance(kind, str) else False:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        found = {key: value for key, value in schema.items() if key != "namespace"} | {"name": name}
        if "aliases" in schema:
            found["aliases"] = [full_name(alias, inner) for alias in schema["aliases"] or ()]
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
    if found["type"] not in (*NAMED, "array", "map") if isinstance(found["type"], str) else True:
        found["type"] = _put_in(found["type"], types, defined)
    return found
