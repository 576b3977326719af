"""What needs a Kafka client but moves no rows: settings, topics, log bounds."""

from penstock.kafka.cluster import Cluster, LogBounds, Subscription
from penstock.kafka.failures import explain
from penstock.kafka.settings import KafkaSecurity, KafkaSettings, read_security

__all__ = ["Cluster", "KafkaSecurity", "KafkaSettings", "LogBounds", "Subscription", "explain", "read_security"]
