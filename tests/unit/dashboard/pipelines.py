"""Pipelines made of files alone: a definition, a checkpoint, a run's note and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from tests.spark_checkpoint import write_checkpoint

from penstock.checkpoint.presence import Presence, RunFacts
from penstock.metrics.history import NAME

SECRET = "hunter2-is-a-secret"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def definition(folder: Path, name: str = "orders", **keys: Any) -> Path:
    body = {
        "name": name,
        "source": {
            "type": "kafka",
            "brokers": "127.0.0.1:1",
            "topics": [name],
            "options": {"socket.timeout.ms": "300", "sasl.password": "${file:secret}"},
        },
        "decode": {"format": "json", "schema": "order_id BIGINT NOT NULL, amount DOUBLE"},
        "quarantine": {"table": f"lake/{name}_bad"},
        "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}"}],
        "checkpoint": f"checkpoints/{name}",
        **keys,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_text(SECRET)
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in body.items() if value is not None}))
    return file


def checkpoint_of(file: Path) -> Path:
    return file.parent / "checkpoints" / file.stem


def committed(file: Path, *ends: Mapping[int, int]) -> Path:
    """A checkpoint with these batches, all committed."""
    return write_checkpoint(checkpoint_of(file), list(ends), topic=file.stem)


def ran(file: Path, error: str | None = None, **facts: Any) -> None:
    """The note of a run that is over."""
    presence = Presence(str(checkpoint_of(file)))
    presence.begin(RunFacts(file.stem, "direct", "running", **facts))
    presence.end(error)


def runs(file: Path, **facts: Any) -> Presence:
    """The note of a run that goes on, for as long as its lock is held."""
    presence = Presence(str(checkpoint_of(file)))
    presence.begin(RunFacts(file.stem, "direct", facts.pop("doing", "running"), **facts))
    return presence


def batch(number: int, at: str, **more: Any) -> dict[str, Any]:
    phases = {"offsets": 0.1, "stage": 1.0, "commit": 0.5, "commit:quarantine": 0.1, "commit:out": 0.3}
    tasks = {"task_read": 0.5, "task_decode": 1.0, "task_stage": 0.5, "task_stage:out": 0.5, "task_registry": 0.2}
    return {
        "at": at, "event": "batch", "pipeline": "orders", "batch_id": number, "finished_at": at, "slots": 2,
        "seconds": 2.0, "rows_in": 1000, "rows_out": 990,
        "quarantined": 10, "bytes_in": 100_000, "offsets": 1000, "cap": 5000, "lag": 40, "waited": 0.5,
        "codes": {"MALFORMED_JSON": 10}, "phases": {**phases, **tasks}, **more,
    }  # fmt: skip


def lag(at: str, topic: str, ends: list[int | None], committed: list[int | None], **more: Any) -> dict[str, Any]:
    known = [(end, done) for end, done in zip(ends, committed, strict=True) if end is not None and done is not None]
    total = sum(end - done for end, done in known)
    body = {"ends": {topic: ends}, "committed": {topic: committed}, "total": total, "behind_seconds": 1.5}
    return {"at": at, "event": "lag", **body, **more}


def write_history(file: Path, entries: Iterable[Mapping[str, Any]]) -> Path:
    path = checkpoint_of(file) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.writelines(json.dumps(entry) + "\n" for entry in entries)
    return path
