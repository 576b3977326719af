"""Arrays and maps taken apart. That Spark gives the same rows is in tests/lanes."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from penstock.contracts import FrameTransform
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Explode

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("items", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("tags", pa.map_(pa.string(), pa.int32())),
        COORDINATES_FIELD,
    ]
)


def batch(*items: Any, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    values = [
        {"id": n, "items": item, "tags": item, COORDINATES: {"topic": "t", "partition": 0, "offset": n, "timestamp": n}}
        for n, item in enumerate(items)
    ]
    return pa.RecordBatch.from_pylist(values, schema=schema)


def with_items(kind: pa.DataType) -> pa.Schema:
    return pa.schema([SCHEMA.field("id"), pa.field("items", kind), COORDINATES_FIELD])


LISTS = with_items(pa.list_(pa.string()))
MAPS = with_items(pa.map_(pa.string(), pa.int32()))


def exploded(rows: pa.RecordBatch, *columns: str, **how: Any) -> list[tuple[object, ...]]:
    good = Explode("items", **how).apply(rows).good
    good.validate(full=True)
    return list(zip(*(good.column(name).to_pylist() for name in columns), strict=True))


def test_explode_of_an_array_gives_a_row_for_each_element_with_its_coordinates() -> None:
    rows = batch(["a", "b"], ["c"], schema=LISTS)
    good = Explode("items").apply(rows).good
    assert good.column("id").to_pylist() == [0, 0, 1]
    assert good.column("items").to_pylist() == ["a", "b", "c"]
    assert [place["offset"] for place in good.column(COORDINATES).to_pylist()] == [0, 0, 1]
    assert good.schema.names == ["id", "items", COORDINATES]


def test_explode_of_empty_and_null_arrays_drops_their_rows() -> None:
    assert exploded(batch([], ["a", None], None, schema=LISTS), "id", "items") == [(1, "a"), (1, None)]


def test_explode_that_keeps_empty_gives_them_one_row_of_null() -> None:
    rows = batch([], ["a", None], None, schema=LISTS)
    found = exploded(rows, "id", "at", "items", keep_empty=True, position="at")
    assert found == [(0, None, None), (1, 0, "a"), (1, 1, None), (2, None, None)]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string())], ids=str)
@pytest.mark.parametrize("keep_empty", [False, True])
def test_explode_of_a_slice_takes_its_own_elements_only(kind: pa.DataType, keep_empty: bool) -> None:
    rows = batch(["x", "y"], ["a"], ["b", "c"], ["z"], schema=with_items(kind)).slice(1, 2)
    found = exploded(rows, "id", "at", "items", keep_empty=keep_empty, position="at")
    assert found == [(1, 0, "a"), (2, 0, "b"), (2, 1, "c")]


def test_explode_of_a_null_array_over_hidden_values_does_not_show_them() -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        pa.array(["a", "secret", "secret", "b"]),
        mask=pa.array([False, True, False]),
    )
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1, 2]), lists], names=["id", "items"])
    assert exploded(rows, "id", "items") == [(0, "a"), (2, "b")]
    assert exploded(rows, "id", "items", keep_empty=True) == [(0, "a"), (1, None), (2, "b")]


def test_explode_of_a_map_gives_keys_and_values_in_its_place() -> None:
    rows = batch({"a": 1, "b": None}, {}, {"c": 3}, None, schema=MAPS)
    good = Explode("ITEMS", "tag", position="at").apply(rows).good
    assert good.schema.names == ["id", "at", "tag_key", "tag_value", COORDINATES]
    assert exploded(rows, "id", "items_key", "items_value") == [(0, "a", 1), (0, "b", None), (2, "c", 3)]
    assert exploded(rows.slice(2), "items_key", "items_value", keep_empty=True) == [("c", 3), (None, None)]


def test_explode_of_structs_keeps_them_whole() -> None:
    kind = pa.list_(pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int32()))]))
    items = [{"name": "a", "sizes": [1, 2]}, None, {"name": None, "sizes": None}]
    rows = batch([{"name": "x", "sizes": []}], items, schema=with_items(kind)).slice(1)
    assert exploded(rows, "items") == [(item,) for item in items]


def test_explode_of_the_only_column_gives_the_elements() -> None:
    rows = pa.RecordBatch.from_pydict({"items": pa.array([[1, 2], [3]])})
    assert exploded(rows, "items") == [(1,), (2,), (3,)]


def test_explode_output_says_what_apply_gives() -> None:
    rows = batch(schema=SCHEMA)
    for explode in (Explode("items", "item", "at"), Explode("tags", keep_empty=True), Explode("tags", position="n")):
        assert explode.no_arrow_form(SCHEMA) is None
        assert explode.apply(rows).good.schema == explode.output(SCHEMA)
    assert not Explode("items").output(SCHEMA).field("items").nullable
    assert Explode("items", keep_empty=True).output(SCHEMA).field("items").nullable


def test_explode_of_another_type_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Explode("id").output(SCHEMA)
    assert caught.value.code == "EXPLODE_NEEDS_ARRAY"
    assert caught.value.context["type"] == "BIGINT"


@pytest.mark.parametrize("explode", [Explode("items", "ID"), Explode("items", position="tags")], ids=repr)
def test_explode_into_a_name_that_is_taken_is_refused(explode: Explode) -> None:
    with pytest.raises(DefinitionError) as caught:
        explode.output(SCHEMA)
    assert caught.value.code == "COLUMN_DUPLICATE"


def test_explode_of_an_unknown_or_reserved_column_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Explode("item").output(SCHEMA)
    assert caught.value.code == "COLUMN_UNKNOWN"
    with pytest.raises(DefinitionError) as caught:
        Explode("items", COORDINATES)
    assert caught.value.code == "COLUMN_RESERVED"


def test_explode_pickled_explodes_the_same_and_runs_as_a_frame_in_spark() -> None:
    explode = pickle.loads(pickle.dumps(Explode("items", "item")))
    assert explode.output(SCHEMA).names == ["id", "item", "tags", COORDINATES]
    assert explode.select(SCHEMA.names) is None
    assert isinstance(explode, FrameTransform)
    assert repr(explode) == "explode items as item"
