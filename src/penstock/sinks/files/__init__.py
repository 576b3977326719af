"""Parquet files as several sinks stage them: partitioned, bounded in memory, durable before they count."""

from penstock.sinks.files.folder import TableFolder
from penstock.sinks.files.partitions import PartitionValues, check_partition_columns, folder_of, split_by_values
from penstock.sinks.files.records import records_in
from penstock.sinks.files.writer import ParquetFiles, WrittenFile, staged_batch, staged_prefix

__all__ = [
    "ParquetFiles",
    "PartitionValues",
    "TableFolder",
    "WrittenFile",
    "check_partition_columns",
    "folder_of",
    "records_in",
    "split_by_values",
    "staged_batch",
    "staged_prefix",
]
