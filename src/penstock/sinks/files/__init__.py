"""Parquet files as several sinks stage them: partitioned, bounded in memory, durable before they count."""

from penstock.sinks.files.folder import TableFolder
from penstock.sinks.files.partitions import PartitionValues, can_partition, folder_of, split_by_values
from penstock.sinks.files.writer import ParquetFiles, WrittenFile

__all__ = [
    "ParquetFiles",
    "PartitionValues",
    "TableFolder",
    "WrittenFile",
    "can_partition",
    "folder_of",
    "split_by_values",
]
