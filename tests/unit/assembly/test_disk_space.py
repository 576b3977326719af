"""What a run raises about a full disk names the place; every other error stays as it is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import yaml

from penstock.assembly.faults import full_disks_named
from penstock.config import PipelineConfig, load
from penstock.errors import MissingError, PenstockError, TerminalError


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": "localhost:9092", "topics": ["orders"]},
        "decode": {"format": "json", "schema": "order_id BIGINT"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
        "checkpoint": "checkpoint",
    }
    file = tmp_path / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    return load(file)


def raised(config: PipelineConfig, error: Exception) -> PenstockError:
    with pytest.raises(PenstockError) as told, full_disks_named(config):
        raise error
    return told.value


def test_sink_without_room_names_the_place(config: PipelineConfig) -> None:
    told = raised(config, TerminalError("SINK_FAILED", "sink out: staging rows: [Errno 28] No space left on device"))
    assert told.code == "SINK_FAILED"
    assert "are free" in told.context["least room here"]


def test_system_without_room_becomes_an_error_with_a_way_out(config: PipelineConfig) -> None:
    told = raised(config, OSError(errno.ENOSPC, "No space left on device", "/x/.penstock.run"))
    assert (told.code, told.exit_code) == ("DISK_FULL", 4)
    assert "/x/.penstock.run" in told.context["cause"]
    assert "least room here" in told.context
    assert "free space" in (told.hint or "")


def test_other_error_says_nothing_of_room(config: PipelineConfig) -> None:
    told = raised(config, MissingError("TOPIC_MISSING", "there is no topic orders"))
    assert told.context == {}


def test_other_error_of_the_system_stays(config: PipelineConfig) -> None:
    with pytest.raises(PermissionError), full_disks_named(config):
        raise PermissionError(errno.EACCES, "Permission denied")
