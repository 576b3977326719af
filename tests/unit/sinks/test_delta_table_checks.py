from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from penstock.errors import MissingError
from penstock.sinks import DeltaSink

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])


def sink(path: Path, **settings: Any) -> DeltaSink:
    return DeltaSink("orders", "out", str(path), **settings)


def make_table(path: Path, fields: list[pa.Field], partition_by: list[str] | None = None) -> None:
    DeltaTable.create(path, schema=Schema.from_arrow(pa.schema(fields)), partition_by=partition_by)


def make_log(
    path: Path, protocol: dict[str, Any], settings: dict[str, str] | None = None, metadata: dict[str, str] | None = None
) -> None:
    """A table as some other engine may have left it."""
    schema = json.loads(Schema.from_arrow(ROWS).to_json())
    schema["fields"][0]["metadata"] = metadata or {}
    table = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "createdTime": 0,
        "configuration": settings or {},
    }
    (path / "_delta_log").mkdir(parents=True)
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": table})]
    (path / "_delta_log" / f"{0:020}.json").write_text("\n".join(lines))


def refusal(target: DeltaSink, schema: pa.Schema = ROWS) -> MissingError:
    with pytest.raises(MissingError) as refused:
        target.prepare(schema)
    assert refused.value.exit_code == 3
    return refused.value


def test_prepare_of_a_new_table_keeps_nullability_and_partitioning(tmp_path: Path) -> None:
    schema = ROWS.set(0, pa.field("id", pa.int64(), nullable=False))
    sink(tmp_path / "t", partition_by=["note"]).prepare(schema)
    table = DeltaTable(tmp_path / "t")
    assert [(field.name, field.nullable) for field in table.schema().fields] == [("id", False), ("note", True)]
    assert table.metadata().partition_columns == ["note"]


def test_prepare_with_other_partitioning_is_refused_showing_both_sides(tmp_path: Path) -> None:
    make_table(tmp_path / "t", list(ROWS), ["note"])
    error = refusal(sink(tmp_path / "t"))
    assert (error.code, error.context) == ("SINK_SCHEMA_MISMATCH", {"pipeline": "none", "table": "note"})


def test_prepare_with_a_table_column_that_is_not_written_depends_on_its_nullability(tmp_path: Path) -> None:
    make_table(tmp_path / "nullable", [*ROWS, pa.field("more", pa.int64())])
    sink(tmp_path / "nullable").prepare(ROWS)
    make_table(tmp_path / "required", [*ROWS, pa.field("more", pa.int64(), nullable=False)])
    error = refusal(sink(tmp_path / "required"))
    assert error.context == {"more": "pipeline not written, table NOT NULL"}


def test_prepare_with_nulls_for_a_required_column_is_refused(tmp_path: Path) -> None:
    make_table(tmp_path / "t", [pa.field("id", pa.int64(), nullable=False), ROWS.field("note")])
    assert refusal(sink(tmp_path / "t")).context == {"id": "pipeline may be null, table NOT NULL"}


def test_prepare_with_a_name_in_another_case_is_refused(tmp_path: Path) -> None:
    make_table(tmp_path / "t", list(ROWS))
    error = refusal(
        sink(tmp_path / "t", evolve="add_columns"), pa.schema([pa.field("ID", pa.int64()), ROWS.field("note")])
    )
    assert error.context == {"id": "pipeline named ID, table named id"}


def test_prepare_with_two_names_that_differ_in_case_only_is_refused(tmp_path: Path) -> None:
    error = refusal(sink(tmp_path / "t"), pa.schema([pa.field("id", pa.int64()), pa.field("Id", pa.int64())]))
    assert error.code == "SINK_SCHEMA_MISMATCH"
    assert not (tmp_path / "t").exists()


def test_prepare_with_nested_differences_names_the_place(tmp_path: Path) -> None:
    def nested(leaf: pa.DataType) -> pa.Schema:
        return pa.schema([pa.field("o", pa.struct([pa.field("l", pa.list_(pa.struct([pa.field("x", leaf)])))]))])

    make_table(tmp_path / "t", list(nested(pa.int64())))
    assert refusal(sink(tmp_path / "t"), nested(pa.string())).context == {"o.l[].x": "pipeline string, table long"}


def test_prepare_adding_fields_inside_lists_and_maps_gives_them_to_the_table(tmp_path: Path) -> None:
    def nested(*names: str) -> pa.Schema:
        inner = pa.struct([pa.field(name, pa.int64()) for name in names])
        return pa.schema([pa.field("l", pa.list_(inner)), pa.field("m", pa.map_(pa.string(), inner))])

    make_table(tmp_path / "t", list(nested("x")))
    assert refusal(sink(tmp_path / "t"), nested("x", "y")).code == "SINK_SCHEMA_MISMATCH"
    sink(tmp_path / "t", evolve="add_columns").prepare(nested("x", "y"))
    written = json.loads(DeltaTable(tmp_path / "t").schema().to_json())
    inner = [written["fields"][0]["type"]["elementType"], written["fields"][1]["type"]["valueType"]]
    assert [[field["name"] for field in kind["fields"]] for kind in inner] == [["x", "y"], ["x", "y"]]


def test_prepare_of_a_folder_with_files_and_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.csv").write_text("1")
    error = refusal(sink(tmp_path / "t"))
    assert (error.code, error.context["found"]) == ("SINK_PATH_NOT_A_TABLE", "mine.csv")
    assert refusal(sink(tmp_path / "t" / "mine.csv")).code == "SINK_PATH_NOT_A_TABLE"


def test_prepare_of_a_folder_with_what_one_batch_staged_makes_the_table(tmp_path: Path) -> None:
    """As an `rm -rf` under a run leaves it: the batch in hand has staged its files, and there is no table."""
    for name in ("part-58b1d568-1-5f3d9f767653-0-eae72cefdb31-1c3f228c-0.parquet",
                 "day=1/part-58b1d568-1-5f3d9f767653-1-eae72cefdb31-1c3f228c-0.parquet"):  # fmt: skip
        staged = tmp_path / "t" / name
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(b"")
    sink(tmp_path / "t").prepare(ROWS)
    assert DeltaTable(tmp_path / "t").version() == 0


@pytest.mark.parametrize(
    "other",
    [
        # A second batch: a table whose log is lost.
        "part-58b1d568-2-5f3d9f767653-0-eae72cefdb31-1c3f228c-0.parquet",
        # Spark's.
        "part-00000-0c1c0bd9-9e1d-4c9e-8d62-0d3c1fdd4b3e-c000.snappy.parquet",
    ],
)
def test_prepare_of_a_folder_with_more_than_one_staged_batch_is_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "t").mkdir()
    for name in ("part-58b1d568-1-5f3d9f767653-0-eae72cefdb31-1c3f228c-0.parquet", other):
        (tmp_path / "t" / name).write_bytes(b"")
    assert refusal(sink(tmp_path / "t")).code == "SINK_PATH_NOT_A_TABLE"


def test_prepare_of_an_empty_folder_makes_the_table(tmp_path: Path) -> None:
    sink(tmp_path).prepare(ROWS)
    assert DeltaTable(tmp_path).version() == 0


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_prepare_of_a_path_without_a_history_is_refused(tmp_path: Path, name: str) -> None:
    assert refusal(sink(tmp_path / name)).code == "SINK_PATH_UNSUPPORTED"


@pytest.mark.parametrize("name", ["a b", "ünï", "a=b+c"])
def test_prepare_of_a_path_with_special_characters_finds_the_table_again(tmp_path: Path, name: str) -> None:
    sink(tmp_path / name).prepare(ROWS)
    sink(tmp_path / name).prepare(ROWS)
    assert (tmp_path / name / "_delta_log").is_dir()


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.timestamp("ns", tz="UTC"), pa.timestamp("us", tz="Europe/Berlin"), pa.duration("us")]
)
def test_prepare_with_a_type_that_delta_lacks_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    error = refusal(sink(tmp_path / "t"), pa.schema([pa.field("x", pa.list_(kind))]))
    assert error.context["columns"] == f"x[]: {kind}"


@pytest.mark.parametrize(
    ("protocol", "settings", "metadata", "named"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, {}, {}, "rowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["notYetKnown"]}, {}, {}, "notYetKnown"),
        ({"minReaderVersion": 2, "minWriterVersion": 6}, {}, {}, "identityColumns"),
        (
            {"minReaderVersion": 1, "minWriterVersion": 3},
            {"delta.constraints.positive": "id > 0"},
            {},
            "constraint positive",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 4},
            {},
            {"delta.generationExpression": "1"},
            "delta.generationExpression of column id",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 2},
            {},
            {"delta.invariants": '{"expression":{"expression":"id > 0"}}'},
            "delta.invariants of column id",
        ),
    ],
)
def test_prepare_of_a_table_that_binds_its_writers_is_refused_naming_the_feature(
    tmp_path: Path, protocol: dict[str, Any], settings: dict[str, str], metadata: dict[str, str], named: str
) -> None:
    make_log(tmp_path / "t", protocol, settings, metadata)
    error = refusal(sink(tmp_path / "t"))
    assert (error.code, error.context) == ("SINK_TABLE_UNSUPPORTED", {"table features": named})


def test_prepare_of_a_table_with_harmless_features_is_accepted(tmp_path: Path) -> None:
    features = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": features,
    }
    make_log(tmp_path / "t", protocol, {"delta.appendOnly": "true"})
    sink(tmp_path / "t").prepare(ROWS)


def test_prepare_with_times_without_a_zone_lists_every_feature_that_spark_asks_for(tmp_path: Path) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    wider = required.append(pa.field("local", pa.timestamp("us")))
    sink(tmp_path / "new").prepare(wider)
    sink(tmp_path / "grown").prepare(required)
    sink(tmp_path / "grown", evolve="add_columns").prepare(wider)
    for name in ("new", "grown"):
        features = DeltaTable(tmp_path / name).protocol().writer_features
        assert set(features or ()) == {"timestampNtz", "invariants"}
