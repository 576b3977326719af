"""Iceberg tables: appends named by pyiceberg, merges written by Spark, one snapshot a batch with its token."""

from penstock.sinks.iceberg.sink import IcebergSink
from penstock.sinks.iceberg.table import IcebergCatalog, open_catalog

__all__ = ["IcebergCatalog", "IcebergSink", "open_catalog"]
