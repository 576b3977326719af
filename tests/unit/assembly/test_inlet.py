"""What a sink is given: its columns, its rows, what is computed for it; and nothing that is not its own."""

from __future__ import annotations

import pyarrow as pa

from penstock.assembly.inlet import Inlet
from penstock.model import COORDINATES_FIELD, DELETES
from penstock.quarantine import RefusingQuarantine

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("_penstock_0", pa.bool_()),
        pa.field("_penstock_1", pa.string()),
        COORDINATES_FIELD,
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"id": 1, "note": "a", "_penstock_0": True, "_penstock_1": "x", "_penstock": {"offset": 7}},
        {"id": 2, "note": "b", "_penstock_0": False, "_penstock_1": "y", "_penstock": {"offset": 8}},
        {"id": 3, "note": "c", "_penstock_0": None, "_penstock_1": None, "_penstock": {"offset": 9}},
    ],
    schema=SCHEMA,
)
SINK = RefusingQuarantine()


def test_inlet_without_wishes_gets_the_rows_without_what_is_computed_for_others() -> None:
    rows = Inlet(SINK).rows(ROWS)
    assert rows.schema.names == ["id", "note", "_penstock"]
    assert rows.num_rows == 3
    assert rows.schema.equals(Inlet(SINK).schema(SCHEMA))


def test_inlet_with_nothing_computed_hands_the_rows_on_as_they_are() -> None:
    plain = ROWS.select(["id", "note", "_penstock"])
    assert Inlet(SINK).rows(plain) is plain


def test_inlet_select_keeps_the_coordinates() -> None:
    assert Inlet(SINK, select=("NOTE",)).rows(ROWS).schema.names == ["note", "_penstock"]


def test_inlet_where_drops_rows_for_which_the_condition_is_false_or_unknown() -> None:
    assert Inlet(SINK, where="_penstock_0").rows(ROWS).column("id").to_pylist() == [1]


def test_inlet_computed_columns_come_last_under_their_own_names() -> None:
    inlet = Inlet(SINK, select=("id",), computed={"_penstock_topic": "_penstock_1", DELETES: "_penstock_0"})
    rows = inlet.rows(ROWS)
    assert rows.schema.names == ["id", "_penstock", "_penstock_topic", DELETES]
    assert rows.column("_penstock_topic").to_pylist() == ["x", "y", None]
    assert rows.column(DELETES).to_pylist() == [True, False, False]
    assert rows.schema.equals(inlet.schema(SCHEMA))
