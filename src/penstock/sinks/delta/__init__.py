"""Delta tables, by append and by merge: rows staged in tasks, one commit a batch on the driver."""

from penstock.sinks.delta.merge import DeltaMergeSink
from penstock.sinks.delta.sink import DeltaSink

__all__ = ["DeltaMergeSink", "DeltaSink"]
