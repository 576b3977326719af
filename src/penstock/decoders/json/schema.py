"""The columns that a JSON Schema describes, drafts 4 to 2020-12.

A property is NOT NULL where it is required and may not be null. An object is a struct or, where only the type of its
values is given, a map. Alternatives are one column where one type holds them all; objects then by all their fields.
What has no column type, such as an object of anything or a schema inside itself, is refused with its path. So is one
that unfolds into more than `MAX_NODES` schemas: a few that refer to each other twice make any number of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any
from urllib.parse import urljoin

import pyarrow as pa
import pyarrow.types as pt
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from penstock.decoders.refusal import SCHEMA_UNSUPPORTED
from penstock.errors import MissingError, PenstockError
from penstock.model import TIMESTAMP
from penstock.registry import ReferencedSchema

_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_ANY = frozenset({*_TYPE_OF.values(), "null"})
_SIMPLE = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP}
_TEXTS = {pa.string(), *_FORMATS.values()}
_NUMBERS = {pa.int64(), pa.float64()}
MAX_NODES = 10_000
_MANY = 64
_MOST_JOINED = 1_000_000
"""How many properties `allOf`, `oneOf` and `anyOf` may bring together, each counted as often as it is copied."""


def json_schema_columns(text: str, references: Sequence[ReferencedSchema] = ()) -> pa.Schema:
    """The columns of the object that `text` describes. Raises `MissingError` where it has none.

    `references` are the schemas that a `$ref` may name; nothing is fetched.
    """
    try:
        kind, nullable = _whole_kind(text, references)
    except PenstockError:
        raise
    except Exception as exc:  # whatever Python or a library says of a schema from outside
        raise _unsupported("", f"it is no valid schema, or is nested too deep ({type(exc).__name__})") from None
    if nullable or not pt.is_struct(kind):
        raise _unsupported("", "the message must be an object with properties, and may be something else")
    return pa.schema(list(kind))


def _whole_kind(text: str, references: Sequence[ReferencedSchema]) -> tuple[pa.DataType, bool]:
    root = _resource(text, "the schema")
    base = root.id() or ""
    known: Registry[Any] = Registry().with_resource(base, root)
    for each in references:
        resource = _resource(each.text, f"the referenced schema {each.name[:100]}")
        known = known.with_resources([(name, resource) for name in {each.name, urljoin(base, each.name)}])
    # Once: a `$ref` to an anchor would otherwise search the whole schema, each time.
    known = known.crawl()
    return _Unfolding().kind([_Part(root.contents, known.resolver(base))], "", frozenset())


@dataclass(frozen=True)
class _Part:
    """A schema inside the whole, and what its references are relative to."""

    content: Any
    resolver: Any


@dataclass(frozen=True)
class _Shape:
    """What one alternative allows: references followed, `allOf` joined, `oneOf` and `anyOf` chosen."""

    types: frozenset[str] = _ANY
    format: str | None = None
    properties: Mapping[str, tuple[_Part, ...]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    entries: tuple[_Part, ...] = ()
    items: tuple[_Part, ...] = ()
    inside: frozenset[int] = frozenset()

    def joined(self, other: _Shape) -> _Shape:
        """What both allow."""
        names = [*self.properties, *(name for name in other.properties if name not in self.properties)]
        return _Shape(
            self.types & other.types,
            self.format or other.format,
            {name: self.properties.get(name, ()) + other.properties.get(name, ()) for name in names},
            self.required | other.required,
            self.entries + other.entries,
            self.items + other.items,
            self.inside | other.inside,
        )


class _Unfolding:
    """One schema on its way to columns, and how much of it has been unfolded."""

    def __init__(self) -> None:
        self._nodes = 0
        self._joined_properties = 0

    def kind(self, parts: Iterable[_Part], path: str, inside: frozenset[int]) -> tuple[pa.DataType, bool]:
        """The type of the values that all `parts` allow, and whether null is one of them."""
        alternatives = self._joined((self._shapes(part, path, inside) for part in parts), path)
        shapes = [shape for shape in alternatives if shape.types]
        kinds = [self._arrow(shape, path) for shape in shapes if shape.types != {"null"}]
        if not kinds:
            raise _unsupported(path, "it allows no value" if not shapes else "it allows nothing but null")
        nullable = any("null" in shape.types for shape in shapes)
        return reduce(lambda one, other: _wider(one, other, path), kinds), nullable

    def _shapes(self, part: _Part, path: str, inside: frozenset[int]) -> list[_Shape]:
        """The alternatives of a schema. `inside` are the schemas around it, by identity, to find it among them."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _unsupported(path, f"its references unfold into more than {MAX_NODES} schemas")
        content = part.content
        if not isinstance(content, dict):
            return [_Shape(_ANY if content is True else frozenset())]
        if id(content) in inside:
            raise _unsupported(path, "the schema contains itself, which a column cannot")
        inside |= {id(content)}
        resolver = part.resolver.in_subresource(Resource.from_contents(content, default_specification=DRAFT7))
        factors = [[_own_shape(content, resolver, inside)]]
        if "$ref" in content:
            try:
                found = resolver.lookup(content["$ref"])
            except Unresolvable:
                problem = f"the reference {content['$ref'][:200]} is neither in the schema nor among its references"
                raise _unsupported(path, problem) from None
            factors.append(self._shapes(_Part(found.contents, found.resolver), path, inside))
        factors += [self._shapes(_Part(each, resolver), path, inside) for each in content.get("allOf", ())]
        for word in ("oneOf", "anyOf"):
            if word in content:
                branches = (self._shapes(_Part(each, resolver), path, inside) for each in content[word])
                factors.append([shape for branch in branches for shape in branch])
        return self._joined(factors, path)

    def _joined(self, factors: Iterable[list[_Shape]], path: str) -> list[_Shape]:
        """Every choice of one alternative from each of `factors`."""
        found = [_Shape()]
        for factor in factors:
            if len(found) * len(factor) > _MANY:
                raise _unsupported(path, f"its oneOf and anyOf make more than {_MANY} alternatives")
            found = [one.joined(other) for one, other in product(found, factor)]
            self._joined_properties += sum(len(shape.properties) for shape in found)
            if self._joined_properties > _MOST_JOINED:
                raise _unsupported(path, f"its allOf, oneOf and anyOf bring together over {_MOST_JOINED:,} properties")
        return found

    def _arrow(self, shape: _Shape, path: str) -> pa.DataType:
        types = shape.types - {"null"}
        if types >= {"integer", "number"}:
            types -= {"integer"}
        if len(types) > 1:
            allowed = "any value" if len(types) > 4 else " or ".join(sorted(types))
            raise _unsupported(path, f"it allows {allowed}")
        [name] = types
        if name == "array":
            if not shape.items:
                raise _unsupported(path, "the schema gives no single type for the items of the array")
            kind, nullable = self.kind(shape.items, f"{path}[]", shape.inside)
            return pa.list_(pa.field("element", kind, nullable))
        if name == "object":
            if shape.properties:
                return pa.struct(_distinct([self._field(name, shape, path) for name in shape.properties], path))
            if not shape.entries:
                raise _unsupported(path, "the schema does not define the contents of the object")
            kind, nullable = self.kind(shape.entries, f"{path}[key]", shape.inside)
            return pa.map_(pa.string(), pa.field("value", kind, nullable))
        return _FORMATS.get(shape.format or "", pa.string()) if name == "string" else _SIMPLE[name]

    def _field(self, name: str, shape: _Shape, path: str) -> pa.Field:
        kind, nullable = self.kind(shape.properties[name], f"{path}.{name}" if path else name, shape.inside)
        return pa.field(name, kind, nullable or name not in shape.required)


def _own_shape(content: Mapping[str, Any], resolver: Any, inside: frozenset[int]) -> _Shape:
    """What the keywords of the schema itself say."""
    named = content.get("type")
    types = _ANY if named is None else frozenset([named] if isinstance(named, str) else named)
    if "number" in types:
        types |= {"integer"}
    values = content.get("enum", [content["const"]] if "const" in content else None)
    if values is not None:
        types &= {_TYPE_OF.get(type(value), "null") for value in values}
    if named is None and {"properties", "additionalProperties", "patternProperties"} & content.keys():
        types &= {"object"}
    if named is None and {"items", "prefixItems"} & content.keys():
        types &= {"array"}
    entries, items = content.get("additionalProperties"), content.get("items")
    return _Shape(
        types,
        content.get("format"),
        {name: (_Part(each, resolver),) for name, each in content.get("properties", {}).items()},
        # Draft 3 has a boolean here, and so have some who write draft 4.
        frozenset(content["required"]) if isinstance(content.get("required"), list) else frozenset(),
        (_Part(entries, resolver),) if isinstance(entries, dict) else (),
        (_Part(items, resolver),) if isinstance(items, dict) and "prefixItems" not in content else (),
        inside,
    )


def _distinct(fields: list[pa.Field], path: str) -> list[pa.Field]:
    seen: dict[str, str] = {}
    for each in fields:
        other = seen.setdefault(each.name.lower(), each.name)
        if other != each.name:
            raise _unsupported(path, f"the properties {other} and {each.name} differ only in case")
    return fields


def _wider(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    """The type that holds the values of both."""
    if one == other:
        return one
    if {one, other} <= _NUMBERS:
        return pa.float64()
    if {one, other} <= _TEXTS:
        return pa.string()
    if pt.is_list(one) and pt.is_list(other):
        return pa.list_(_wider_field(one.value_field, other.value_field, f"{path}[]"))
    if pt.is_map(one) and pt.is_map(other):
        return pa.map_(pa.string(), _wider_field(one.item_field, other.item_field, f"{path}[key]"))
    if pt.is_struct(one) and pt.is_struct(other):
        ours, theirs = ({each.name: each for each in kind} for kind in (one, other))
        inner = {name: f"{path}.{name}" if path else name for name in ours | theirs}
        fields = [
            _wider_field(ours[name], theirs[name], inner[name])
            if name in ours and name in theirs
            else (ours | theirs)[name].with_nullable(True)
            for name in inner
        ]
        return pa.struct(_distinct(fields, path))
    raise _unsupported(path, f"no column type holds all its alternatives: {one} and {other}")


def _wider_field(one: pa.Field, other: pa.Field, path: str) -> pa.Field:
    return pa.field(one.name, _wider(one.type, other.type, path), one.nullable or other.nullable)


def _resource(text: str, what: str) -> Resource[Any]:
    try:
        return Resource.from_contents(json.loads(text), default_specification=DRAFT7)
    except ValueError:
        raise _unsupported("", f"{what} is not JSON") from None


def _unsupported(path: str, problem: str) -> MissingError:
    return MissingError(
        SCHEMA_UNSUPPORTED,
        f"finding the columns of a JSON Schema: {problem}",
        context={"path": path[:200] or "the whole message"},
        hint="define the columns in decode.schema; extra_fields: keep stores other fields as JSON text",
    )
