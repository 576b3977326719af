"""A real Kafka on this machine, in KRaft mode, as child processes: for first steps, the demo and tests."""

from penstock.devstack.stack import DevStack
from penstock.devstack.state import Node, StackState, StackStatus, read_status
from penstock.devstack.stopping import Stopped, stop_stack

__all__ = ["DevStack", "Node", "StackState", "StackStatus", "Stopped", "read_status", "stop_stack"]
