"""Spark's checkpoint files, read as data, and the lock that keeps a checkpoint to one run."""

from penstock.checkpoint.files import Offsets, SparkCheckpoint, ranges_between, to_spark_json
from penstock.checkpoint.lock import checkpoint_lock

__all__ = ["Offsets", "SparkCheckpoint", "checkpoint_lock", "ranges_between", "to_spark_json"]
