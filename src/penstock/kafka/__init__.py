"""What needs a Kafka client but moves no rows: settings, topics, log bounds."""

from penstock.kafka.cluster import Cluster, LogBounds, Subscription, explain
from penstock.kafka.settings import KafkaSettings

__all__ = ["Cluster", "KafkaSettings", "LogBounds", "Subscription", "explain"]
