"""How a pipeline reaches its brokers, by its file."""

from __future__ import annotations

from penstock.config import KafkaSourceConfig, reveal
from penstock.kafka import KafkaSettings


def settings_of(source: KafkaSourceConfig) -> KafkaSettings:
    """The settings of every client that a source needs."""
    return KafkaSettings(source.brokers, reveal(source.options))
