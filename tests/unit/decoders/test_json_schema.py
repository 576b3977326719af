"""JSON Schemas to columns: types, nullability, references, alternatives; and what has no columns."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from penstock.config.arrow_types import parse_columns
from penstock.decoders import JsonDecoder
from penstock.decoders.json.schema import MAX_NODES, json_schema_columns
from penstock.errors import MissingError
from penstock.registry import ReferencedSchema

NODE = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}, "id": {"type": "integer"}}}


def columns(properties: dict[str, Any], *references: ReferencedSchema, **more: Any) -> pa.Schema:
    return json_schema_columns(json.dumps({"type": "object", "properties": properties, **more}), references)


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ({"type": "string"}, "STRING NOT NULL"),
        ({"type": "string", "format": "date"}, "DATE NOT NULL"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP NOT NULL"),
        ({"type": "string", "format": "email"}, "STRING NOT NULL"),
        ({"type": "integer"}, "BIGINT NOT NULL"),
        ({"type": "number"}, "DOUBLE NOT NULL"),
        ({"type": "boolean"}, "BOOLEAN NOT NULL"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"type": ["integer", "number"]}, "DOUBLE NOT NULL"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "STRING"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "DOUBLE"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, "STRING NOT NULL"),
        ({"enum": ["new", "paid"]}, "STRING NOT NULL"),
        ({"enum": ["new", None]}, "STRING"),
        ({"type": "string", "enum": ["new", None]}, "STRING NOT NULL"),
        ({"enum": [1, 2.5]}, "DOUBLE NOT NULL"),
        ({"const": "order"}, "STRING NOT NULL"),
        ({"type": "array", "items": {"type": "integer"}}, "ARRAY<BIGINT> NOT NULL"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "STRUCT<a: BIGINT> NOT NULL"),
        (
            {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
            "STRUCT<a: BIGINT NOT NULL> NOT NULL",
        ),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE> NOT NULL"),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]},
            "STRUCT<a: BIGINT, b: STRING> NOT NULL",
        ),
        (
            {
                "oneOf": [
                    {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]},
                    {"properties": {"a": {"type": "integer"}, "c": {"type": "string"}}, "required": ["a", "c"]},
                ]
            },
            "STRUCT<a: BIGINT NOT NULL, b: STRING, c: STRING> NOT NULL",
        ),
        (
            {
                "type": "object",
                "properties": {"mail": {"type": "string"}, "phone": {"type": "string"}},
                "anyOf": [{"required": ["mail"]}, {"required": ["phone"]}],
            },
            "STRUCT<mail: STRING, phone: STRING> NOT NULL",
        ),
    ],
)
def test_required_property_becomes_a_column_of_its_type(schema: dict[str, Any], column: str) -> None:
    found = columns({"x": schema}, required=["x"])
    wanted = parse_columns(f"x {column}")
    assert _without_items(found) == _without_items(wanted)
    JsonDecoder(found)


def test_item_that_may_be_null_is_nullable_and_another_is_not() -> None:
    found = columns(
        {
            "a": {"type": "array", "items": {"type": ["string", "null"]}},
            "b": {"type": "array", "items": {"type": "string"}},
            "c": {"additionalProperties": {"type": "string"}},
        }
    )
    assert found.field("a").type.value_field.nullable
    assert not found.field("b").type.value_field.nullable
    assert not found.field("c").type.item_field.nullable


def test_property_that_is_not_required_is_nullable() -> None:
    found = columns({"x": {"type": "integer"}, "y": {"type": "integer"}}, required=["y"])
    assert [field.nullable for field in found] == [True, False]


@pytest.mark.parametrize(
    ("draft", "word"),
    [
        ("http://json-schema.org/draft-04/schema#", "definitions"),
        ("http://json-schema.org/draft-07/schema#", "definitions"),
        ("https://json-schema.org/draft/2020-12/schema", "$defs"),
    ],
)
def test_local_reference_is_followed_in_every_draft(draft: str, word: str) -> None:
    money = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
    more = {"$schema": draft, word: {"mo~ney/1": money}}
    found = columns({"price": {"$ref": f"#/{word}/mo~0ney~11"}, "tax": {"$ref": f"#/{word}/mo~0ney~11"}}, **more)
    kind = pa.struct([pa.field("cents", pa.int64(), nullable=False)])
    assert found == pa.schema([pa.field("price", kind), pa.field("tax", kind)])


@pytest.mark.parametrize("identity", [{}, {"$id": "http://shop.example/order.json"}])
def test_reference_to_another_schema_is_followed_through_it(identity: dict[str, str]) -> None:
    address = ReferencedSchema("address.json", '{"properties": {"city": {"type": "string"}}, "type": "object"}')
    customer = ReferencedSchema(
        "customer.json",
        json.dumps(
            {
                "definitions": {"name": {"type": "string"}},
                "type": "object",
                "properties": {"home": {"$ref": "address.json"}, "name": {"$ref": "#/definitions/name"}},
            }
        ),
    )
    refs = {"customer": {"$ref": "customer.json"}, "name": {"$ref": "customer.json#/definitions/name"}}
    found = columns(refs, address, customer, **identity)
    assert found == parse_columns("customer STRUCT<home: STRUCT<city: STRING>, name: STRING>, name STRING")


@pytest.mark.parametrize(
    ("properties", "path", "problem"),
    [
        ({"a": {"properties": {"b": {"type": "object"}}}}, "a.b", "does not define the contents"),
        ({"a": {}}, "a", "any value"),
        ({"a": True}, "a", "any value"),
        ({"a": {"type": ["string", "integer"]}}, "a", "integer or string"),
        ({"a": {"oneOf": [{"type": "string"}, {"type": "boolean"}]}}, "a", "no column type holds"),
        ({"a": {"type": "array"}}, "a", "items"),
        ({"a": {"type": "array", "items": [{"type": "string"}]}}, "a", "items"),
        ({"a": {"type": "array", "items": {"type": "object"}}}, "a[]", "does not define"),
        ({"a": {"additionalProperties": {"type": "object"}}}, "a[key]", "does not define"),
        ({"a": {"type": "null"}}, "a", "nothing but null"),
        ({"a": False}, "a", "no value"),
        ({"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "a", "no value"),
        ({"a": {"$ref": "#/definitions/node"}}, "a.next", "contains itself"),
        ({"a": {"$ref": "other.json"}}, "a", "other.json is neither"),
        ({"id": {"type": "string"}, "ID": {"type": "string"}}, "the whole message", "differ only in case"),
        ({"a": {"type": 5}}, "the whole message", "no valid schema"),
        ({"a": {"allOf": [{"anyOf": [{"minimum": n} for n in range(9)]}] * 2}}, "a", "more than 64"),
    ],
)
def test_schema_without_a_column_type_is_refused_with_its_path(
    properties: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(MissingError) as caught:
        columns(properties, definitions={"node": NODE})
    assert caught.value.code == "SCHEMA_UNSUPPORTED"
    assert caught.value.context["path"] == path
    assert problem in caught.value.summary
    assert "decode.schema" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["{", '{"type": "string"}', '{"type": ["object", "null"], "properties": {"a": {}}}'])
def test_message_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(MissingError) as caught:
        json_schema_columns(text)
    assert caught.value.code == "SCHEMA_UNSUPPORTED"


def _doubling(levels: int, word: str) -> str:
    """A small schema whose parts each refer to the next one twice."""
    made: dict[str, Any] = {"end": {"type": "integer"}}
    for n in range(levels):
        below = {"$ref": f"#/definitions/{f'n{n - 1}' if n else 'end'}"}
        made[f"n{n}"] = (
            {"type": "object", "properties": {"l": below, "r": below}}
            if word == "properties"
            else {word: [below, below]}
        )
    return json.dumps(
        {"type": "object", "properties": {"a": {"$ref": f"#/definitions/n{levels - 1}"}}, "definitions": made}
    )


@pytest.mark.parametrize("word", ["properties", "allOf", "anyOf", "oneOf"])
def test_schema_that_unfolds_without_end_is_refused_soon(word: str) -> None:
    began = time.perf_counter()
    with pytest.raises(MissingError) as caught:
        json_schema_columns(_doubling(40, word))
    assert caught.value.code == "SCHEMA_UNSUPPORTED"
    assert f"more than {MAX_NODES} schemas" in caught.value.summary or "more than 64" in caught.value.summary
    assert time.perf_counter() - began < 10


def test_schema_with_many_alternatives_of_many_properties_is_refused_soon() -> None:
    many = [{"properties": {f"p{n}": {"type": "integer"}}} for n in range(4_000)]
    began = time.perf_counter()
    with pytest.raises(MissingError, match="SCHEMA_UNSUPPORTED"):
        columns({"a": {"allOf": [{"anyOf": [{"minLength": n} for n in range(60)]}, *many]}})
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"$schema": 5}',
        '{"$schema": []}',
        '{"$id": 5, "properties": {"a": {"$ref": 5}}}',
        '{"properties": []}',
        '{"properties": {"a": {"$ref": "http://[/"}}}',
        '{"properties": {"a": {"$ref": "#/definitions/%FF/0/~2"}}, "definitions": []}',
        '{"type": [[]], "properties": {}}',
        '{"properties": {"a": {"enum": 5}}}',
        '{"properties": {"a": {"allOf": 5}}}',
        '{"type": "object", "required": [[]], "properties": {"a": {"type": "integer"}}}',
        '{"properties": {"a": {"type": "string", "format": ["date"]}}}',
    ],
)
def test_schema_that_is_malformed_has_a_code(text: str) -> None:
    with pytest.raises(MissingError, match="SCHEMA_UNSUPPORTED"):
        json_schema_columns(text)
    with pytest.raises(MissingError, match="SCHEMA_UNSUPPORTED"):
        json_schema_columns(
            '{"type": "object", "properties": {"a": {"$ref": "other"}}}', [ReferencedSchema("other", text)]
        )


def _without_items(schema: pa.Schema) -> list[tuple[str, bool, str]]:
    """The columns as text without what a columns text cannot say: that an item is NOT NULL."""
    return [(f.name, f.nullable, str(f.type).replace("element: int64 not null", "element: int64")) for f in schema]
