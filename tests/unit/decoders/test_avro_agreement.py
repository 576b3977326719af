"""The invariants of the Avro decoder: it reads what another implementation writes, and nothing it is given upsets it.

Schemas and values are random; fastavro writes them, and reads them again with the reader's schema as the reference.
"""

from __future__ import annotations

import copy
import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.decoders.conftest import RawBatch

from penstock.decoders.avro.decoder import AvroDecoder

quick = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOGICAL: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 1))),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, 86_399_999)),
    ({"type": "long", "logicalType": "time-micros"}, st.integers(0, 86_399_999_999)),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(datetime(1900, 1, 1)).map(
            lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=UTC)
        ),
    ),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes(datetime(1900, 1, 1))),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        st.decimals(-999_999_999, 999_999_999, places=3),
    ),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
]
PRIMITIVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=12)),
    ("bytes", st.binary(max_size=12)),
]


class Names:
    """Names that are unique in a schema."""

    def __init__(self) -> None:
        self._next = 0

    def new(self) -> str:
        self._next += 1
        return f"Name{self._next}"


@st.composite
def typed(draw: st.DrawFn, names: Names, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type and how its values are drawn."""
    kinds = ["primitive", "primitive", "logical", "enum", "fixed", "optional"]
    kind = draw(st.sampled_from(kinds + (["record", "array", "map", "union"] if depth else [])))
    match kind:
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "enum":
            symbols = ["RED", "GREEN", "BLUE"][: draw(st.integers(1, 3))]
            return {"type": "enum", "name": names.new(), "symbols": symbols}, st.sampled_from(symbols)
        case "fixed":
            size = draw(st.integers(1, 20))
            return {"type": "fixed", "name": names.new(), "size": size}, st.binary(min_size=size, max_size=size)
        case "optional":
            inner, values = draw(typed(names, depth).filter(lambda t: not isinstance(t[0], list)))
            return draw(st.permutations(["null", inner])), st.none() | values
        case "record":
            return draw(recorded(names, depth - 1))
        case "array":
            items, values = draw(typed(names, depth - 1))
            return {"type": "array", "items": items}, st.lists(values, max_size=4)
        case "map":
            items, values = draw(typed(names, depth - 1))
            return {"type": "map", "values": items}, st.dictionaries(st.text(max_size=4), values, max_size=3)
        case _:
            # Branches whose values differ in Python, so that the value says which branch it is of; and none that can be
            # promoted to another: fastavro would do that, where the Java implementation keeps what is the same.
            record, records = draw(recorded(names, 0))
            number, text = draw(st.sampled_from([(2, 5), (4, 6), (2, 6), (4, 5)]))
            some = [("null", st.none()), *(PRIMITIVES[at] for at in (0, number, text)), (record, records)]
            chosen = draw(st.lists(st.sampled_from(range(len(some))), min_size=3, max_size=5, unique=True))
            return [some[at][0] for at in chosen], st.one_of([some[at][1] for at in chosen])


@st.composite
def recorded(draw: st.DrawFn, names: Names, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
    """A record and how its values are drawn."""
    name = names.new()
    fields = [draw(typed(names, depth)) for _ in range(draw(st.integers(1, 4)))]
    schema = [{"name": f"f{at}", "type": kind} for at, (kind, _) in enumerate(fields)]
    values = st.fixed_dictionaries({f"f{at}": values for at, (_, values) in enumerate(fields)})
    return {"type": "record", "name": name, "fields": schema}, values


@st.composite
def evolved(draw: st.DrawFn, schema: Any, names: Names) -> Any:
    """A schema that a reader of `schema` may have instead."""
    if isinstance(schema, list):
        return schema
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and "logicalType" in schema:
        return schema
    match kind:
        case "int":
            return draw(st.sampled_from(["int", "long", "double", ["null", "int"]]))
        case "long":
            return draw(st.sampled_from(["long", "float", "double", ["long", "null"]]))
        case "float":
            return draw(st.sampled_from(["float", "double"]))
        case "string":
            return draw(st.sampled_from(["string", "bytes", ["null", "string"]]))
        case "array":
            return {**schema, "items": draw(evolved(schema["items"], names))}
        case "map":
            return {**schema, "values": draw(evolved(schema["values"], names))}
        case "enum":
            default = schema["symbols"][-1]
            return {**schema, "symbols": draw(st.sampled_from([schema["symbols"], [default]])), "default": default}
        case "record":
            fields = []
            for field in schema["fields"]:
                change = draw(st.sampled_from(["keep", "drop", "rename", "evolve", "evolve"]))
                if change == "drop":
                    continue
                kept = {**field}
                if change == "rename":
                    kept |= {"name": f"{field['name']}_new", "aliases": [field["name"]]}
                if change == "evolve":
                    kept["type"] = draw(evolved(field["type"], names))
                fields.append(kept)
            added = [
                {"name": "added", "type": "long", "default": 7},
                {"name": "added_list", "type": {"type": "array", "items": "string"}, "default": ["x"]},
                {"name": "added_map", "type": {"type": "map", "values": ["null", "int"]}, "default": {"k": None}},
                {"name": "added_text", "type": ["null", "string"], "default": None},
            ]
            fields += draw(st.lists(st.sampled_from(added), min_size=0 if fields else 1, unique_by=str))
            return {**schema, "fields": draw(st.permutations(fields))}
        case _:
            return schema


def expected(schema: Any, value: Any) -> Any:
    """What the column should hold for a value as fastavro reads it."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if value is None or len(branches) == 1:
            return None if value is None else expected(branches[0], value)
        chosen = next(at for at, branch in enumerate(branches) if is_of(branch, value))
        members = {f"member{at}": None for at in range(len(branches))}
        return members | {f"member{chosen}": expected(branches[chosen], value)}
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    match kind:
        case "record":
            return {field["name"]: expected(field["type"], value[field["name"]]) for field in schema["fields"]}
        case "array":
            return [expected(schema["items"], item) for item in value]
        case "map":
            return [(key, expected(schema["values"], item)) for key, item in value.items()]
        case "float":
            return float(np.float32(value))
        case "double":
            return float(value)
        case "bytes" if isinstance(value, str):
            return value.encode()
        case "string" if logical == "uuid":
            return str(value)
        case "int" | "long" if logical.startswith("time-"):
            micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return micros // 1000 if logical == "time-millis" else micros
    return value


def is_of(branch: Any, value: Any) -> bool:
    kinds = {"boolean": bool, "long": int, "double": float, "string": str, "bytes": bytes}
    return type(value) is (kinds[branch] if isinstance(branch, str) else dict)


def written(schema: Any, values: list[Any]) -> list[bytes]:
    parsed, found = fastavro.parse_schema(copy.deepcopy(schema)), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def read_back(message: bytes, writer: Any, reader: Any) -> Any:
    schemas = [fastavro.parse_schema(copy.deepcopy(schema)) for schema in (writer, reader)]
    return fastavro.schemaless_reader(io.BytesIO(message), *schemas)


@quick
@given(st.data())
def test_avro_random_schema_reads_what_fastavro_wrote(raw_batch: RawBatch, data: st.DataObject) -> None:
    schema, values = data.draw(recorded(Names(), 2))
    rows = data.draw(st.lists(values, min_size=1, max_size=6))
    messages = written(schema, rows)
    split = AvroDecoder(json.dumps(schema), framing="none").decode(raw_batch(messages))
    assert split.bad.to_pylist() == []
    split.good.validate(full=True)
    found = split.good.drop_columns(["_penstock"]).to_pylist()
    assert found == [expected(schema, read_back(message, schema, schema)) for message in messages]


@quick
@given(st.data())
def test_avro_random_evolution_reads_as_fastavro_resolves(raw_batch: RawBatch, data: st.DataObject) -> None:
    names = Names()
    writer, values = data.draw(recorded(names, 2))
    reader = data.draw(evolved(writer, names))
    messages = written(writer, data.draw(st.lists(values, min_size=1, max_size=6)))
    decoder = AvroDecoder(json.dumps(reader), framing="none", writers=(json.dumps(writer),))
    split = decoder.decode(raw_batch(messages))
    assert split.bad.to_pylist() == []
    split.good.validate(full=True)
    found = split.good.drop_columns(["_penstock"]).to_pylist()
    assert found == [expected(reader, read_back(message, writer, reader)) for message in messages]


FUZZED = {
    "type": "record",
    "name": "Fuzzed",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "props", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "any", "type": ["null", "long", "string", {"type": "fixed", "name": "Four", "size": 4}]},
        {
            "name": "note",
            "type": ["null", {"type": "record", "name": "Note", "fields": [{"name": "t", "type": "string"}]}],
        },
    ],
}


@pytest.mark.parametrize("odd", [False, True], ids=["native", "slow"])
def test_avro_mutated_messages_end_good_or_bad_and_alone(raw_batch: RawBatch, odd: bool) -> None:
    dice = random.Random(7)
    schema = copy.deepcopy(FUZZED)
    if odd:
        schema["fields"].append({"name": "odd", "type": {"type": "fixed", "name": "Odd", "size": 3}})  # type: ignore[attr-defined]
    rows = [
        {
            "id": dice.getrandbits(60),
            "name": "n" * dice.randrange(9),
            "kind": "B",
            "amount": Decimal(dice.randrange(10**6)).scaleb(-2),
            "at": EPOCH,
            "tags": ["x", None][: dice.randrange(3)],
            "props": {"k": [1, 2, 3]},
            "any": dice.choice([None, 5, "five", b"five"]),
            "note": dice.choice([None, {"t": "hello"}]),
            "odd": b"odd",
        }
        for _ in range(3000)
    ]
    good = written(schema, rows)
    mutated = [_mutated(message, dice) if at % 2 else message for at, message in enumerate(good)]
    decoder = AvroDecoder(json.dumps(schema), framing="none")
    split = decoder.decode(raw_batch(mutated))
    assert split.good.num_rows + split.bad.num_rows == len(mutated)
    split.good.validate(full=True)
    offsets = [place["offset"] for place in split.good.column("_penstock").to_pylist()]
    read = dict(zip(offsets, split.good.column("id").to_pylist(), strict=True))
    assert all(read[1000 + at] == rows[at]["id"] for at in range(0, len(rows), 2))
    refused = split.bad.to_pylist()
    assert all(record["value"] == mutated[record["offset"] - 1000] for record in refused)
    assert {record["code"] for record in refused} <= {
        "TRUNCATED",
        "TRAILING_DATA",
        "MALFORMED_AVRO",
        "TOO_MANY_ITEMS",
        "OUT_OF_RANGE",
        "INVALID_UTF8",
    }
    assert {"TRUNCATED", "TRAILING_DATA", "MALFORMED_AVRO"} <= {record["code"] for record in refused}


def _mutated(message: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(message))
    match dice.randrange(5):
        case 0:
            return message[:at]
        case 1:
            return message + dice.randbytes(dice.randrange(1, 4))
        case 2:
            return message[:at] + dice.randbytes(dice.randrange(1, 4)) + message[at:]
        case 3:
            return message[:at] + message[at + 1 :]
        case _:
            return message[:at] + dice.randbytes(1) + message[at + 1 :]
