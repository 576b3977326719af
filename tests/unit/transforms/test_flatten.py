"""Structs taken apart. That Spark gives the same rows is in tests/lanes."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from penstock.contracts import FrameTransform
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Flatten

GEO = pa.struct([pa.field("lat", pa.float64(), nullable=False), pa.field("lon", pa.float64())])
ADDRESS = pa.struct([pa.field("city", pa.string()), pa.field("geo", GEO, nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("address", ADDRESS),
        pa.field("list", pa.list_(GEO)),
        pa.field("seen", pa.struct([("at", pa.int32())]), nullable=False),
        COORDINATES_FIELD,
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": n,
            "address": address,
            "list": [],
            "seen": {"at": n},
            COORDINATES: {"topic": "t", "partition": 0, "offset": n, "timestamp": n},
        }
        for n, address in enumerate(
            [{"city": "x", "geo": {"lat": 1.0, "lon": 2.0}}, None, {"city": None, "geo": {"lat": 3.0, "lon": None}}]
        )
    ],
    schema=SCHEMA,
)


def test_flatten_of_every_struct_leaves_the_coordinates_and_takes_the_rest_apart() -> None:
    good = Flatten().apply(ROWS).good
    assert good.schema.names == [
        "id",
        "address_city",
        "address_geo_lat",
        "address_geo_lon",
        "list",
        "seen_at",
        COORDINATES,
    ]
    assert good.column("address_city").to_pylist() == ["x", None, None]
    assert good.column("address_geo_lat").to_pylist() == [1.0, None, 3.0]
    assert good.column(COORDINATES).equals(ROWS.column(COORDINATES))
    good.validate(full=True)


def test_flatten_of_a_named_column_takes_it_alone_apart() -> None:
    assert Flatten(["ADDRESS"], separator=".").output(SCHEMA).names == [
        *("id", "address.city", "address.geo.lat", "address.geo.lon", "list", "seen", COORDINATES)
    ]


@pytest.mark.parametrize(
    ("depth", "names"), [(1, ["a_b"]), (2, ["a_b_c"]), (3, ["a_b_c_d"]), (9, ["a_b_c_d"]), (None, ["a_b_c_d"])]
)
def test_flatten_to_a_depth_stops_there(depth: int | None, names: list[str]) -> None:
    rows = pa.RecordBatch.from_pydict({"a": pa.array([{"b": {"c": {"d": 1}}}])})
    good = Flatten(depth=depth).apply(rows).good
    assert good.schema.names == names
    assert good.schema == Flatten(depth=depth).output(rows.schema)


def test_flatten_of_a_null_struct_over_hidden_values_gives_nulls_in_slices_too() -> None:
    inner = pa.StructArray.from_arrays([pa.array(["a", "hidden", "c", "d"])], names=["x"])
    outer = pa.StructArray.from_arrays([inner], names=["in"], mask=pa.array([False, True, False, False]))
    rows = pa.RecordBatch.from_arrays([outer], names=["s"])
    assert Flatten().apply(rows).good.column("s_in_x").to_pylist() == ["a", None, "c", "d"]
    assert Flatten().apply(rows.slice(1, 2)).good.column("s_in_x").to_pylist() == [None, "c"]


def test_flatten_output_is_nullable_where_a_struct_on_the_way_is() -> None:
    schema = Flatten().output(SCHEMA)
    assert schema == Flatten().apply(ROWS).good.schema
    assert schema.field("address_geo_lat").nullable
    assert schema.field("seen_at").nullable
    sure = pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False)]), nullable=False)])
    assert not Flatten().output(sure).field("s_x").nullable


def test_flatten_into_a_name_that_is_taken_names_both() -> None:
    schema = pa.schema([("a_b", pa.int32()), ("a", pa.struct([("B", pa.int32())]))])
    with pytest.raises(DefinitionError) as caught:
        Flatten().no_arrow_form(schema)
    assert caught.value.code == "COLUMN_DUPLICATE"
    assert caught.value.context == {"one": "a_b", "other": "a.B"}
    assert Flatten(separator="__").output(schema).names == ["a_b", "a__B"]


def test_flatten_of_another_type_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Flatten(["id"]).output(SCHEMA)
    assert caught.value.code == "FLATTEN_NEEDS_STRUCT"
    assert caught.value.context["type"] == "BIGINT"


def test_flatten_of_an_unknown_repeated_or_reserved_column_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Flatten(["adress"]).output(SCHEMA)
    assert caught.value.code == "COLUMN_UNKNOWN"
    with pytest.raises(DefinitionError) as caught:
        Flatten(["a", "A"])
    assert caught.value.code == "COLUMN_DUPLICATE"
    with pytest.raises(DefinitionError) as caught:
        Flatten([COORDINATES])
    assert caught.value.code == "COLUMN_RESERVED"


def test_flatten_pickled_flattens_the_same_and_runs_as_a_frame_in_spark() -> None:
    flatten = pickle.loads(pickle.dumps(Flatten(["seen"])))
    assert flatten.output(SCHEMA).names == ["id", "address", "list", "seen_at", COORDINATES]
    assert flatten.select(SCHEMA.names) is None
    assert isinstance(flatten, FrameTransform)
    assert repr(flatten) == "flatten seen"
    assert repr(Flatten()) == "flatten every struct"
