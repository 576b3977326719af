from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import PipelineConfig, load
from penstock.supervision.fleet_events import FleetOptions
from penstock.supervision.member import FleetApplication


def write(folder: Path, name: str, **keys: Any) -> PipelineConfig:
    body = {
        "name": name,
        "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT"},
        "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}"}],
        "checkpoint": f"checkpoints/{name}",
        **keys,
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return load(file)


def stored(folder: Path, name: str, bucket: str, key: str) -> PipelineConfig:
    return write(
        folder,
        name,
        sinks=[{"name": "out", "type": "delta", "path": f"s3://{bucket}/{name}"}],
        storage={"endpoint": "http://localhost:9000", "access_key": "${env:ID}", "secret_key": f"${{env:{key}}}"},
    )


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ID", "ONE", "TWO"):
        monkeypatch.setenv(name, f"canary-{name}")


def test_application_has_what_any_of_its_pipelines_says_of_it(tmp_path: Path) -> None:
    configs = [
        write(tmp_path, "a", spark={"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 3}),
        write(tmp_path, "b", spark={"spark.eventLog.enabled": False}),
    ]
    settings = FleetApplication(configs, 2, FleetOptions()).settings
    assert settings["spark.driver.memory"] == "2g" and settings["spark.eventLog.enabled"] == "false"
    assert settings["spark.scheduler.mode"] == "FAIR" and settings["spark.sql.streaming.pollingDelay"] == "20ms"
    assert "spark.sql.shuffle.partitions" not in settings


def test_application_is_named_after_its_first_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []

    @contextmanager
    def application(name: str, *_: Any) -> Iterator[None]:
        named.append(name)
        yield

    monkeypatch.setattr("penstock.supervision.member.application", application)
    configs = [write(tmp_path, name) for name in ("a", "b", "c")]
    for count in (1, 2, 3):
        with FleetApplication(configs[:count], count, FleetOptions()).opened(print):
            pass
    assert named == ["penstock a", "penstock a and 1 more", "penstock a and 2 more"]


def test_application_opens_the_buckets_of_each_with_its_own_keys(tmp_path: Path) -> None:
    found = FleetApplication([stored(tmp_path, "a", "x", "ONE"), stored(tmp_path, "b", "y", "TWO")], 2, FleetOptions())
    assert found.problems == []
    assert found.settings["spark.hadoop.fs.s3a.bucket.x.secret.key"] == "canary-ONE"
    assert found.settings["spark.hadoop.fs.s3a.bucket.y.secret.key"] == "canary-TWO"


def test_application_refuses_two_ways_into_one_bucket_and_shows_neither(tmp_path: Path) -> None:
    found = FleetApplication([stored(tmp_path, "a", "x", "ONE"), stored(tmp_path, "b", "x", "TWO")], 2, FleetOptions())
    [problem] = found.problems
    assert "b.yaml" in problem.file and "other settings" in problem.message and "canary" not in str(problem)


def test_application_that_runs_takes_no_other_settings_and_no_new_store(tmp_path: Path) -> None:
    running = FleetApplication([write(tmp_path, "a", spark={"spark.driver.memory": "2g"})], 1, FleetOptions(watch=True))
    assert running.problems_with(write(tmp_path, "b", spark={"spark.driver.memory": "2g"})) == []
    [problem] = running.problems_with(write(tmp_path, "b", spark={"spark.driver.memory": "3g"}))
    assert problem.path == "spark.spark.driver.memory"
    [problem] = running.problems_with(stored(tmp_path, "c", "x", "ONE"))
    assert problem.path == "storage"
