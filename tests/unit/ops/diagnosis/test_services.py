"""What batches wait for: sinks, brokers, registries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ops.diagnosis.evidences import batches, behind, brokers, caught_up, causes, codes, config

from penstock.ops.diagnosis.evidence import RegistryFacts

MERGE = {"type": "delta", "path": "lake/orders", "mode": "merge", "keys": ["id"]}


@pytest.mark.parametrize(
    ("sink", "change"),
    [
        ({"type": "delta", "path": "lake/orders"}, "penstock compact "),
        (MERGE, "sinks[0].prune_by: "),
        ({"type": "postgres", "url": "postgresql://u@h/d", "table": "public.orders"}, "in the database, "),
        ({"type": "parquet", "path": "lake/files"}, "closer storage for out"),
    ],
)
def test_slow_sink_is_found_with_the_change_for_its_kind(tmp_path: Path, sink: dict[str, Any], change: str) -> None:
    slow = behind(config(tmp_path, sinks=[{"name": "out", **sink}]), batches=batches(phases={"commit:out": 6.0}))
    [cause] = causes(slow)
    assert (cause.code, cause.change[: len(change)]) == ("SLOW_SINK", change)
    assert "sink out 6.2 s of 8.0 s a batch" in cause.evidence[0]
    assert codes(caught_up(slow)) == []


def test_slow_sink_that_keeps_up_is_found_where_batches_take_longer_than_the_file_asks_for(tmp_path: Path) -> None:
    slow = caught_up(behind(config(tmp_path), batches=batches(seconds=60, phases={"commit:out": 50.0})))
    assert codes(slow) == ["SLOW_SINK"]


def test_slow_sink_is_none_that_takes_many_rows_or_little_time(tmp_path: Path) -> None:
    quick = behind(config(tmp_path), batches=batches(rows_out=5_000_000, phases={"commit:out": 6.0}))
    assert codes(quick) == []
    assert codes(behind(config(tmp_path), batches=batches(seconds=0.4, phases={"commit:out": 0.2}))) == []


def test_slow_sink_in_its_tasks_counts_by_the_time_that_passed(tmp_path: Path) -> None:
    # Two slots side by side: 14 s of their time are 7 s of the batch.
    assert codes(behind(config(tmp_path), batches=batches(phases={"task_stage:out": 14.0}))) == ["SLOW_SINK"]
    assert codes(behind(config(tmp_path), batches=batches(phases={"task_stage:out": 6.0}))) == []


def test_slow_broker_names_the_setting_that_makes_it_slow(tmp_path: Path) -> None:
    options = {"fetch.min.bytes": "10000000", "fetch.wait.max.ms": "100", "client.id": "me"}
    slow = behind(config(tmp_path, source={"options": options}), batches=batches(phases={"task_read": 14.0}))
    [cause] = causes(slow)
    assert (cause.code, cause.change) == ("SLOW_BROKER", "remove fetch.min.bytes from source.options")
    assert codes(caught_up(slow)) == []
    harmless = behind(config(tmp_path), batches=batches(phases={"task_read": 14.0}))
    assert "127.0.0.1:1" in causes(harmless)[0].change
    assert codes(replace(harmless, batches=batches(rows_in=1_000_000, phases={"task_read": 14.0}))) == []


def test_slow_broker_is_found_by_its_answer_alone(tmp_path: Path) -> None:
    slow = behind(config(tmp_path), brokers=brokers(25_000, 25_000, seconds=1.2))
    assert causes(slow)[0].summary == "the brokers take 1.2 s to answer"


def test_slow_registry_is_found_before_and_in_the_tasks(tmp_path: Path) -> None:
    asked = replace(
        behind(config(tmp_path), batches=batches(phases={"registry": 5.0})),
        registries=(RegistryFacts("http://127.0.0.1:2", 2.5),),
    )
    [cause] = causes(asked)
    assert cause.code == "SLOW_REGISTRY"
    assert cause.evidence[-1] == "http://127.0.0.1:2 takes 2500 ms to respond now"
    assert cause.change.startswith("decode.version")
    assert codes(caught_up(asked)) == []
    within = behind(config(tmp_path), batches=batches(phases={"task_registry": 10.0, "task_decode": 10.3}))
    assert causes(within)[0].change.startswith("decode.registry.url")
    assert codes(behind(config(tmp_path), batches=batches(phases={"task_registry": 2.0}))) == []
