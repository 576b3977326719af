"""A case file to begin with, made from the pipeline's own columns."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import config as cfg
from penstock.config.cases import topics_of
from penstock.config.ddl import read_columns

_SAMPLES = {
    "BOOLEAN": "true",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), "1"),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL"), "1.5"),
    "STRING": "abc",
    "BINARY": "YWJj",
    "DATE": '"2026-01-31"',
    "TIMESTAMP": '"2026-01-31T08:00:00Z"',
    "TIMESTAMP_NTZ": '"2026-01-31T08:00:00"',
    "ARRAY": "[]",
    "STRUCT": "{}",
    "MAP": "{}",
}


def skeleton(config: cfg.PipelineConfig) -> str:
    """A case file to begin with, from the pipeline's columns."""
    columns: Sequence[str] = ()
    for flow in cfg.flows(config):
        if flow.decode is not None and (text := getattr(flow.decode, "columns", None)):
            columns = [f"{column.name}: {_SAMPLES.get(column.type.name, 'null')}" for column in read_columns(text)]
            break
    value = f"{{{', '.join(columns)}}}" if columns else '"..."'
    topics = topics_of(config)
    topic = f", topic: {topics[0] if topics else 'TOPIC'}" if topics is None or len(topics) > 1 else ""
    return f"cases:\n  - name: a good message\n    messages:\n      - {{value: {value}{topic}}}\n"
