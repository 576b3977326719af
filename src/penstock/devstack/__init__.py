"""A real Kafka and schema registry on this machine, as child processes: for first steps, the demo and tests."""

from penstock.devstack.stack import DevStack
from penstock.devstack.state import Node, Registry, Service, StackState, StackStatus, read_status
from penstock.devstack.stopping import Stopped, stop_stack

__all__ = [
    "DevStack",
    "Node",
    "Registry",
    "Service",
    "StackState",
    "StackStatus",
    "Stopped",
    "read_status",
    "stop_stack",
]
