"""Delta tables by append: Parquet files staged in tasks, one delta-rs commit a batch on the driver."""

from penstock.sinks.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
