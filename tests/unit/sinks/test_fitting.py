from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import MissingError
from penstock.sinks.evolution import Evolve, Fit, Fitting, cast_rows, wide_enough


def field(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("x", kind)])


def fit(rows: pa.Schema, held: pa.Schema, evolve: Evolve = "fail") -> Fit:
    return Fitting("out", evolve).fit(rows, held)


def refusal(rows: pa.Schema, held: pa.Schema, evolve: Evolve = "fail") -> MissingError:
    with pytest.raises(MissingError) as refused:
        fit(rows, held, evolve)
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    return refused.value


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.decimal128(6, 4), pa.decimal128(11, 4)),
        (pa.decimal128(38, 0), pa.decimal128(6, 4), None),
        (pa.int32(), pa.float64(), None),
        (pa.int64(), pa.uint8(), None),
        (pa.string(), pa.int32(), None),
        (pa.date32(), pa.timestamp("us"), None),
    ],
)
def test_type_that_is_wide_enough_holds_all_of_both_or_there_is_none(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert wide_enough(one, other) == both
    assert wide_enough(other, one) == both


@pytest.mark.parametrize(
    "around",
    [
        lambda kind: kind,
        lambda kind: pa.struct([pa.field("y", kind)]),
        pa.list_,
        pa.large_list,
        lambda kind: pa.map_(pa.string(), kind),
        lambda kind: pa.map_(kind, pa.string()),
    ],
    ids=["plain", "struct", "list", "large list", "map value", "map key"],
)
def test_narrower_type_is_taken_as_the_table_has_it_wherever_it_is(around: Any) -> None:
    for evolve in ("fail", "ignore", "add_columns", "widen"):
        fitted = fit(field(around(pa.int16())), field(around(pa.int64())), evolve)
        assert not fitted.changes_target
        assert fitted.taken == field(around(pa.int64()))


def test_wider_type_is_widened_only_where_it_is_asked_for() -> None:
    held = pa.schema([pa.field("s", pa.struct([pa.field("n", pa.int32())])), pa.field("d", pa.decimal128(9, 4))])
    rows = pa.schema([pa.field("s", pa.struct([pa.field("n", pa.int64())])), pa.field("d", pa.decimal128(8, 2))])
    fitted = fit(rows, held, "widen")
    assert [(each.path, each.type) for each in fitted.widened] == [
        (("s", "n"), pa.int64()),
        (("d",), pa.decimal128(10, 4)),
    ]
    assert fitted.changes() == ["widen s.n INT -> BIGINT", "widen d DECIMAL(9, 4) -> DECIMAL(10, 4)"]
    for evolve in ("fail", "ignore", "add_columns"):
        error = refusal(rows, held, evolve)
        assert error.context == {
            "s.n": "pipeline BIGINT, table INT",
            "d": "pipeline DECIMAL(8, 2), table DECIMAL(9, 4)",
        }
        assert "evolve: widen" in str(error.hint)


def test_wider_key_of_a_map_is_refused_even_so() -> None:
    rows, held = (field(pa.map_(kind, pa.string())) for kind in (pa.int64(), pa.int32()))
    assert list(refusal(rows, held, "widen").context) == ["x key"]


def test_other_kind_is_refused_whatever_evolve_says() -> None:
    for evolve in ("fail", "ignore", "add_columns", "widen"):
        error = refusal(field(pa.string()), field(pa.int64()), evolve)
        assert error.context == {"x": "pipeline STRING, table BIGINT"}
        assert "evolve" not in str(error.hint)


def test_fields_that_the_table_lacks_are_added_or_left_out_or_refused() -> None:
    inner = pa.list_(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())]))
    rows = pa.schema([pa.field("l", inner), pa.field("n", pa.string())])
    held = pa.schema([pa.field("l", pa.list_(pa.struct([pa.field("a", pa.int32())])))])
    added = fit(rows, held, "add_columns")
    assert [each.path for each in added.added] == [("l", "element", "b"), ("n",)]
    assert added.changes() == ["add column l[].b INT", "add column n STRING"]
    assert added.taken == rows
    ignored = fit(rows, held, "ignore")
    assert ignored.changes() == ["ignore column l[].b", "ignore column n"]
    assert (ignored.taken, ignored.changes_target) == (held, False)
    assert "l[].b, n" in refusal(rows, held).summary


def test_struct_of_which_nothing_is_known_is_left_out_whole_unless_the_table_requires_it() -> None:
    rows, held = (pa.schema([pa.field("s", pa.struct([pa.field(name, pa.int32())]))]) for name in "ab")
    assert fit(rows, held, "ignore").taken == pa.schema([])
    required = pa.schema([held.field("s").with_nullable(False)])
    rows = pa.schema([rows.field("s").with_nullable(False)])
    assert list(refusal(rows, required, "ignore").context) == ["s"]


def test_staged_rows_may_lack_what_the_table_requires_but_have_nothing_that_it_lacks() -> None:
    held = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("must", pa.int64(), nullable=False)])
    keys, more = pa.schema([pa.field("id", pa.int32())]), pa.schema([held.field("id"), pa.field("more", pa.int64())])
    assert Fitting("out").staged(keys, held) == pa.schema([pa.field("id", pa.int64())])
    assert Fitting("out", "ignore").staged(more, held).names == ["id"]
    for evolve in ("fail", "add_columns", "widen"):
        with pytest.raises(MissingError, match="lacks more"):
            Fitting("out", evolve).staged(more, held)


def test_rows_are_cast_and_fields_left_out_deep_inside() -> None:
    mine = pa.struct([pa.field("n", pa.int32()), pa.field("x", pa.string()), pa.field("d", pa.decimal128(5, 2))])
    rows = pa.record_batch({"s": pa.array([{"n": 1, "x": "no", "d": Decimal("1.25")}, None], mine), "more": [1, 2]})
    wanted = pa.schema([pa.field("s", pa.struct([pa.field("n", pa.int64()), pa.field("d", pa.decimal128(9, 4))]))])
    assert cast_rows(rows, wanted).to_pylist() == [{"s": {"n": 1, "d": Decimal("1.2500")}}, {"s": None}]
