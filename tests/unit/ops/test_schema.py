"""`schema check` before it asks a registry: what cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import PipelineConfig, load
from penstock.errors import PenstockError
from penstock.ops.schema import plan_schema_check

AVRO = {"format": "avro", "registry": {"url": "http://127.0.0.1:9", "retries": 1}}
JSON = {"format": "json", "schema": "order_id BIGINT NOT NULL"}


def pipeline(folder: Path, *topics: str, **keys: Any) -> PipelineConfig:
    (folder / "orders.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "orders",
                "source": {"type": "kafka", "brokers": "127.0.0.1:9", "topics": list(topics)},
                "sinks": [{"name": f"out_{topic}", "type": "delta", "path": f"lake/{topic}"} for topic in topics],
                "quarantine": {"table": "lake/bad"},
                "checkpoint": "checkpoint",
                **keys,
            }
        )
    )
    return load(folder / "orders.yaml")


def two_subjects(folder: Path) -> PipelineConfig:
    routes = [{"topics": [topic], "sinks": [f"out_{topic}"]} for topic in ("orders", "clicks")]
    return pipeline(folder, "orders", "clicks", decode={"by_topic": {"orders": AVRO, "clicks": AVRO}}, routes=routes)


def refused(config: PipelineConfig, candidate: Path | None = None, subject: str | None = None) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        plan_schema_check(config, candidate, subject)
    return raised.value


def test_schema_check_of_a_pipeline_without_a_registry_says_there_is_none(tmp_path: Path) -> None:
    error = refused(pipeline(tmp_path, "orders", decode=JSON))
    assert (error.code, error.exit_code) == ("NO_REGISTRY", 2)


def test_schema_check_of_a_subject_that_is_not_read_names_those_that_are(tmp_path: Path) -> None:
    error = refused(two_subjects(tmp_path), subject="payments-value")
    assert (error.code, error.context["subjects"]) == ("SUBJECT_NOT_READ", "clicks-value, orders-value")


def test_schema_check_of_a_candidate_for_one_of_several_subjects_asks_for_which(tmp_path: Path) -> None:
    (tmp_path / "new.avsc").write_text('"string"')
    error = refused(two_subjects(tmp_path), tmp_path / "new.avsc")
    assert (error.code, error.context["subjects"]) == ("SUBJECT_NEEDED", "clicks-value, orders-value")


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff", "not UTF-8")])
def test_schema_check_of_a_candidate_that_cannot_be_read_says_why(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "new.avsc"
    if content is not None:
        file.write_bytes(content)
    error = refused(pipeline(tmp_path, "orders", decode=AVRO), file)
    assert (error.code, why in error.summary) == ("SCHEMA_FILE_MISSING", True)
