"""Whether the partitions of a pipeline can be split among the tasks, by its file alone."""

from __future__ import annotations

from penstock.config import KafkaSinkConfig, PipelineConfig, flows, remembers


def whole_partitions(config: PipelineConfig) -> str | None:
    """Why one task reads a partition whole, where it does; elsewhere large ones are split among the tasks."""
    for flow in flows(config):
        if flow.sides or any(map(remembers, flow.transforms)):
            return "the steps with state have Spark read, one task for each partition"
    for sink in config.sinks:
        if isinstance(sink, KafkaSinkConfig) and sink.guarantee == "exactly_once":
            return f"sink {sink.name} writes in transactions, each partition in one slot"
    return None
