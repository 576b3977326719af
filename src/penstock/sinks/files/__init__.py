"""Files as several sinks stage them: partitioned, bounded in memory, durable before they count."""

from penstock.sinks.files.folder import (
    PartitionValues,
    TableFolder,
    check_partition_columns,
    folder_of,
    split_by_values,
)
from penstock.sinks.files.writer import ParquetFiles, staged_batch, staged_prefix

__all__ = [
    "ParquetFiles",
    "PartitionValues",
    "TableFolder",
    "check_partition_columns",
    "folder_of",
    "split_by_values",
    "staged_batch",
    "staged_prefix",
]
