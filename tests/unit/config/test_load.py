import json
import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from penstock.config import (
    InvalidDefinition,
    JsonDecodeConfig,
    PipelineConfig,
    PostgresSinkConfig,
    SqlConfig,
    flows,
    load,
    reveal,
)
from penstock.config.decode import decoded_columns
from penstock.config.flows import follow
from penstock.config.problems import Positions
from penstock.config.scope import Scope
from penstock.config.yaml_source import Document
from penstock.transforms import Sql

VALID = Path(__file__).parents[2] / "definitions" / "valid"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_WORD", "many words")
    monkeypatch.setenv("PENSTOCK_TEST_NUMBER", "5000")
    monkeypatch.delenv("PENSTOCK_TEST_NOT_SET", raising=False)


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return file


def problems(file: Path) -> list[str]:
    with pytest.raises(InvalidDefinition) as raised:
        load(file)
    return [f"{problem.path}: {problem.message}" for problem in raised.value.problems]


def test_load_canonical_file_gives_typed_values() -> None:
    config = load(VALID / "canonical.yaml")
    assert config.source.topics == ("orders",)
    assert config.source.max_offsets == 500_000
    assert config.trigger.every == timedelta(seconds=10)
    assert [transform.kind for transform in config.transforms] == ["where", "derive", "dedupe", "sql"]
    assert isinstance(config.transforms[3], SqlConfig)
    assert config.sinks[0].name == "orders_delta"


def test_load_relative_locations_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = load(VALID / "canonical.yaml")
    assert config.checkpoint == str(VALID / "checkpoints" / "orders")
    assert config.quarantine is not None
    assert config.quarantine.table == str(VALID / "lake" / "orders_quarantine")


def test_load_uri_location_is_left_alone(tmp_path: Path) -> None:
    text = (VALID / "smallest.yaml").read_text().replace("checkpoints/clicks", "s3://bucket/checkpoints/../x")
    assert load(write(tmp_path, text)).checkpoint == "s3://bucket/checkpoints/../x"


def test_load_start_as_time_and_as_offsets_is_typed() -> None:
    assert load(VALID / "pattern_from_a_time.yaml").source.start == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert load(VALID / "assigned_partitions.yaml").source.start == {
        "orders": {"0": 1500, "1": 20},
        "returns": {"3": 0},
    }


def test_load_reference_gives_a_number_field_its_number() -> None:
    assert load(VALID / "secrets_by_reference.yaml").source.max_offsets == 5000


def test_load_reference_gives_a_text_field_its_text_even_if_it_looks_like_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_NAME", "2024")
    text = (VALID / "smallest.yaml").read_text().replace("name: clicks\n", "name: ${env:PENSTOCK_TEST_NAME}\n")
    assert load(write(tmp_path, text)).name == "2024"


def test_load_secret_is_in_the_value_and_nowhere_else() -> None:
    config = load(VALID / "secrets_by_reference.yaml")
    assert reveal(config.source.options)["sasl.password"] == "not a real secret"
    assert config.source.options["sasl.oauthbearer.token.endpoint.url"] == "https://login.example.com/token"
    shown = f"{config} {config!r} {config.model_dump()} {config.model_dump_json()} {config.positions}"
    assert "not a real secret" not in shown
    assert 'password="many words' not in shown


def test_load_database_url_is_secret() -> None:
    sinks = load(VALID / "every_sink.yaml").sinks
    (url,) = [sink.url for sink in sinks if isinstance(sink, PostgresSinkConfig)]
    assert isinstance(url, SecretStr)
    assert url.get_secret_value() == "postgresql://orders:many words@db/orders"


def test_load_schema_file_becomes_the_columns() -> None:
    decode = load(VALID / "schema_from_a_file.yaml").decode
    assert isinstance(decode, JsonDecodeConfig)
    assert decode.columns is not None
    assert decode.columns.startswith("order_id BIGINT NOT NULL")


def test_config_after_pickle_is_equal_and_still_knows_its_file() -> None:
    config = load(VALID / "secrets_by_reference.yaml")
    again: PipelineConfig = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.file == VALID / "secrets_by_reference.yaml"
    assert reveal(again.source.options) == reveal(config.source.options)
    problem = again.positions.problem(("sinks", 0, "path"), "it is gone")
    assert str(problem).endswith(":24:11 sinks[0].path: it is gone")


def test_config_is_frozen() -> None:
    config = load(VALID / "smallest.yaml")
    with pytest.raises(ValidationError):
        config.name = "other"  # type: ignore[misc]


def test_invalid_definition_after_pickle_is_the_same(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition) as raised:
        load(write(tmp_path, "name: x\n"))
    again = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(again, InvalidDefinition)
    assert (str(again), again.problems, again.exit_code) == (str(raised.value), raised.value.problems, 2)


def test_load_one_refused_part_does_not_hide_what_is_wrong_in_the_others(tmp_path: Path) -> None:
    text = (VALID / "canonical.yaml").read_text()
    text = text.replace("max_offsets: 500000", "max_offsets: none").replace("[order_id]}", "[ordr_id]}")
    text = text.replace("partition_by: [event_date]", "partition_by: [evnt_date]")
    assert problems(write(tmp_path, text)) == [
        'source.max_offsets: expected a whole number, got "none"',
        'transforms[2].dedupe.keys[0]: column "ordr_id" is not available at this step',
        'sinks[0].partition_by[0]: column "evnt_date" is not available at this step',
    ]


def test_load_misspelt_key_is_read_as_the_one_that_was_meant(tmp_path: Path) -> None:
    text = (VALID / "canonical.yaml").read_text().replace("topics: [orders]", "topcs: [my orders]")
    assert problems(write(tmp_path, text)) == [
        'source.topcs: unknown key "topcs"',
        'source.topics[0]: "my orders" is not a topic name',
    ]


def test_load_empty_required_key_is_reported_once(tmp_path: Path) -> None:
    text = (VALID / "canonical.yaml").read_text().replace("topics: [orders]", "topics:")
    assert problems(write(tmp_path, text)) == ["source.topics: the value is missing"]


def columns_after(file: str, count: int) -> dict[str, str] | None:
    """The columns after the first steps of a file, with their types."""
    config = load(VALID / file)
    [flow] = flows(config)
    flow = replace(flow, transforms=flow.transforms[:count])
    assert flow.decode is not None
    document = Document(config.positions)
    scope = follow({flow.decode_path: decoded_columns(flow.decode)}, flow, document)
    assert document.problems == []
    return None if scope.types is None else {name: str(kind) for name, kind in scope.types.items()}


def test_columns_after_steps_follow_names_and_types() -> None:
    file = "every_transform.yaml"
    assert list(columns_after(file, 5) or ()) == [
        "id",
        "customer",
        "amount",
        "event_time",
        "event_date",
        "zip",
        "_penstock",
    ]
    assert (columns_after(file, 4) or {})["amount"] == "DECIMAL(12, 2)"
    assert list(columns_after(file, 8) or ()) == ["id", "customer", "twice", "event_date", "_penstock"]


def test_columns_after_what_only_spark_knows_are_none() -> None:
    found = [columns_after("sql_that_only_spark_can_follow.yaml", count) for count in range(3)]
    assert [columns is None for columns in found] == [False, True, True]


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("SELECT id FROM input", True),
        ("SELECT id, sum(amount) OVER (PARTITION BY id) AS amount FROM input WHERE id > 1", True),
        ("SELECT id, _penstock FROM input", True),
        ("SELECT DISTINCT id FROM input", False),
        ("SELECT id, max(amount) AS amount FROM input GROUP BY id", False),
        ("SELECT max(id) AS id FROM input", False),
    ],
)
def test_sql_step_keeps_the_coordinates_where_each_row_comes_from_one(query: str, kept: bool) -> None:
    scope = Scope(Document(Positions("")), {"id": None, "amount": None, "_penstock": None})
    step = SqlConfig(sql=query)
    step.check(scope, ("transforms", 0, "sql"))
    assert ("_penstock" in (scope.types or ())) is kept
    assert ("_penstock" in Sql(query).select(["id", "amount", "_penstock"])) is kept


def test_load_needs_no_arrow_and_no_spark() -> None:
    code = (
        "import sys, json; from pathlib import Path; from penstock.config import load; "
        f"load(Path({str(VALID / 'canonical.yaml')!r})); "
        "print(json.dumps([m for m in ('pyarrow', 'pyspark', 'numpy', 'pandas', 'polars') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
