"""What a reference gives is a secret as a setting, whatever its name; what is written out is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from penstock.config import InvalidDefinition, PipelineConfig, load, reveal
from penstock.config.fields import RevealedSecret, secret_names

CANARY = "canary-hunter2"


def pipeline(folder: Path, **keys: Any) -> PipelineConfig:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "id BIGINT"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake"}],
        "checkpoint": "checkpoint",
        **keys,
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return load(file)


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)


def test_setting_by_reference_is_a_secret_whatever_its_name(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        source={"type": "kafka", "brokers": "b:1", "topics": ["orders"], "options": {"client.x": "${env:CANARY}"}},
        spark={"spark.hadoop.fs.shop.opening": "a ${env:CANARY}", "spark.driver.memory": "${env:NONE:-2g}"},
    )
    assert CANARY not in repr(config) and CANARY not in str(config)
    assert isinstance(config.source.options["client.x"], SecretStr)
    assert config.spark["spark.driver.memory"] == "2g", "a JVM is started with it"
    revealed = reveal(config.spark)
    assert revealed["spark.hadoop.fs.shop.opening"] == f"a {CANARY}"
    assert isinstance(revealed["spark.hadoop.fs.shop.opening"], RevealedSecret) and CANARY not in repr(revealed)
    assert secret_names(revealed) == ["spark.hadoop.fs.shop.opening"]


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("header.Authorization", "Bearer ${env:CANARY}", False),
        ("header.Authorization", "${env:CANARY}", False),
        ("header.Authorization", "Bearer abc", True),
        ("header.x-api-key", "abc", True),
        ("adls.connection-string", "AccountName=a;AccountKey=${env:CANARY};EndpointSuffix=core.windows.net", False),
        ("adls.connection-string", "AccountName=a;AccountKey=abc", True),
        ("s3.endpoint", "https://store/?sig=abc", True),
        ("s3.region", "eu-west-1", False),
        ("s3.sse.key", "abc", True),
    ],
)
def test_property_of_a_catalog_is_refused_where_it_writes_a_secret_out(
    tmp_path: Path, name: str, value: str, refused: bool
) -> None:
    catalog = {"type": "rest", "uri": "https://catalog", "properties": {name: value}}
    sink = {"name": "out", "type": "iceberg", "table": "a.b", "warehouse": "s3://lake", "catalog": catalog}
    if not refused:
        pipeline(tmp_path, sinks=[sink])
        return
    with pytest.raises(InvalidDefinition, match="secret in plain text"):
        pipeline(tmp_path, sinks=[sink])
