"""Spark's checkpoint files, read as data, and the lock that keeps a checkpoint to one run."""

from penstock.checkpoint.files import SparkCheckpoint, ranges_between
from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.logs import Offsets, to_spark_json

__all__ = ["Offsets", "SparkCheckpoint", "checkpoint_lock", "ranges_between", "to_spark_json"]
