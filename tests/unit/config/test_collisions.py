from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import PipelineConfig, load
from penstock.config.locations import find_collisions


def write(folder: Path, name: str, **keys: Any) -> PipelineConfig:
    body: dict[str, Any] = {
        "name": name,
        "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT"},
        "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}"}],
        "checkpoint": f"checkpoints/{name}",
    }
    source = keys.pop("source", {})
    body["source"] |= source
    body |= keys
    file = folder / f"{keys.pop('file', name)}.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in body.items() if k != "file"}, sort_keys=False))
    return load(file)


def told(configs: list[PipelineConfig]) -> str:
    [problem] = find_collisions(configs)
    return str(problem)


def test_collisions_of_pipelines_with_all_their_own_are_none(tmp_path: Path) -> None:
    assert find_collisions([write(tmp_path, "a"), write(tmp_path, "b"), write(tmp_path, "c")]) == []


def test_collisions_of_one_name_are_told_at_the_later_file_with_both_sides(tmp_path: Path) -> None:
    first = write(tmp_path, "a")
    second = write(tmp_path, "a", file="b", checkpoint="checkpoints/b",
                   sinks=[{"name": "out", "type": "delta", "path": "lake/b"}])  # fmt: skip
    assert told([first, second]).splitlines() == [
        f"{tmp_path}/b.yaml:1:7 name: the name is also used by a",
        f"  the name of a: {tmp_path}/a.yaml:1:7",
        "  give each pipeline a unique name: it is part of every commit's identity",
    ]


def test_collisions_of_checkpoints_one_inside_the_other_are_told(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a"), write(tmp_path, "b", checkpoint="checkpoints/a/inner")
    assert "the checkpoint is inside the checkpoint of a" in told([first, second])


def test_collisions_of_a_table_with_another_checkpoint_are_told(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a"), write(tmp_path, "b", checkpoint="lake/a")
    assert 'the checkpoint and the sink "out" of a are in the same place' in told([first, second])


def test_collisions_of_tables_by_a_link_are_found(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "lake")
    first = write(tmp_path, "a")
    second = write(tmp_path, "b", sinks=[{"name": "o", "type": "parquet", "path": "other/a"}])
    assert 'the sink "o" and the sink "out" of a are in the same place' in told([first, second])


def test_collisions_of_iceberg_tables_in_one_warehouse_are_told(tmp_path: Path) -> None:
    sink = {"name": "ice", "type": "iceberg", "table": "shop.orders", "warehouse": "lake/ice"}
    first, second = write(tmp_path, "a", sinks=[sink]), write(tmp_path, "b", sinks=[sink])
    assert 'the sink "ice" and the sink "ice" of a are in the same place' in told([first, second])


def test_collisions_of_database_tables_go_by_the_database_and_not_by_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE", "postgresql://ann:canary-1@db:5432/shop")
    monkeypatch.setenv("TWO", "postgresql://bob:canary-2@db/shop")
    sink = {"name": "pg", "type": "postgres", "table": "public.orders"}
    first = write(tmp_path, "a", sinks=[{**sink, "url": "${env:ONE}"}])
    second = write(tmp_path, "b", sinks=[{**sink, "url": "${env:TWO}"}])
    text = told([first, second])
    assert 'the table of the sink "pg" is also used by a' in text
    assert "canary" not in text


def test_collisions_of_a_shared_quarantine_are_none(tmp_path: Path) -> None:
    shared = {"table": "lake/quarantine", "topic": "bad"}
    assert find_collisions([write(tmp_path, "a", quarantine=shared), write(tmp_path, "b", quarantine=shared)]) == []


def test_collisions_of_a_quarantine_with_anothers_table_are_told(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a"), write(tmp_path, "b", quarantine={"table": "lake/a"})
    assert 'the quarantine table and the sink "out" of a are in the same place' in told([first, second])


def test_collisions_of_a_topic_with_two_writers_are_none(tmp_path: Path) -> None:
    sink = {"name": "out", "type": "kafka", "topic": "clean"}
    assert find_collisions([write(tmp_path, "a", sinks=[sink]), write(tmp_path, "b", sinks=[sink])]) == []


def test_collisions_of_consumer_groups_are_told_on_one_cluster_alone(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a"), write(tmp_path, "b", source={"group": "penstock.a"})
    assert "the consumer group penstock.a is also used by a" in told([first, second])
    elsewhere = write(tmp_path, "b", source={"group": "penstock.a", "brokers": "other:9092"})
    assert find_collisions([first, elsewhere]) == []


def test_collisions_of_metrics_ports_are_told_and_free_ones_are_not(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a", metrics={"port": 9400}), write(tmp_path, "b", metrics={"port": 9400})
    assert "the port 127.0.0.1:9400 of metrics is also used by a" in told([first, second])
    assert find_collisions([write(tmp_path, "a", metrics={"port": 0}), write(tmp_path, "b", metrics={"port": 0})]) == []


def test_collisions_of_application_settings_are_told_with_both_values(tmp_path: Path) -> None:
    first = write(tmp_path, "a", spark={"spark.driver.memory": "1g"})
    second = write(tmp_path, "b", spark={"spark.driver.memory": "2g"})
    text = told([first, second])
    assert "spark.driver.memory differs from that of a" in text
    assert "a.yaml:16:24 says 1g" in text


def test_collisions_of_session_settings_are_none(tmp_path: Path) -> None:
    first = write(tmp_path, "a", spark={"spark.sql.shuffle.partitions": 2})
    second = write(tmp_path, "b", spark={"spark.sql.shuffle.partitions": 4})
    assert find_collisions([first, second]) == []


def test_collisions_of_secret_settings_do_not_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "canary-1")
    monkeypatch.setenv("TWO", "canary-2")
    first = write(tmp_path, "a", spark={"spark.hadoop.fs.s3a.secret.key": "${env:ONE}"})
    second = write(tmp_path, "b", spark={"spark.hadoop.fs.s3a.secret.key": "${env:TWO}"})
    text = told([first, second])
    assert "spark.hadoop.fs.s3a.secret.key differs" in text
    assert "canary" not in text
