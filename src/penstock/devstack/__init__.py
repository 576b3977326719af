"""A real Kafka, schema registry and Spark cluster on this machine, as child processes: for first steps and tests."""

from penstock.devstack.processes import Stopped, stop_stack
from penstock.devstack.secure import Secured, SecureStack
from penstock.devstack.spark_cluster import SparkInstalled
from penstock.devstack.stack import DevStack
from penstock.devstack.state import (
    Node,
    Registry,
    Service,
    SparkCluster,
    SparkMaster,
    StackState,
    read_status,
)

__all__ = [
    "DevStack",
    "Node",
    "Registry",
    "SecureStack",
    "Secured",
    "Service",
    "SparkCluster",
    "SparkInstalled",
    "SparkMaster",
    "StackState",
    "Stopped",
    "read_status",
    "stop_stack",
]
