"""Iceberg tables: appends named by pyiceberg, merges written by Spark, one snapshot a batch with its token."""

from penstock.sinks.iceberg.catalog import IcebergCatalog, open_catalog
from penstock.sinks.iceberg.sink import IcebergSink

__all__ = ["IcebergCatalog", "IcebergSink", "open_catalog"]
