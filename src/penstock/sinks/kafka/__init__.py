"""Kafka topics: exactly once by transactions, at least once without, and the quarantine's topic."""

from penstock.sinks.kafka.encode.encoding import Encoding
from penstock.sinks.kafka.fitting import ChosenTopics
from penstock.sinks.kafka.quarantine_topic import QuarantineTopic
from penstock.sinks.kafka.sink import KafkaAtLeastOnceSink, KafkaSink

__all__ = ["ChosenTopics", "Encoding", "KafkaAtLeastOnceSink", "KafkaSink", "QuarantineTopic"]
