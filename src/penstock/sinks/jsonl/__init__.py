"""Rows as JSON lines in plain files, exactly once by batch, for any reader that can list a folder.

    <path>/_columns.parquet                        the columns of all files, as a Parquet footer
    <path>/penstock_batch=<label>/_manifest.json   the position, and each file with its rows and size
    <path>/penstock_batch=<label>/<column>=<value>/part-....jsonl
    <path>/_writers/<writer>.json                  the partitions that a pipeline and sink ever committed
    <path>/../.<name>.penstock/                    what is staged: outside the folder, where no reader looks

The folder is that of `sinks.parquet` with another kind of file in it: batches, manifests and commits are the same. A
line is one row, written as the Kafka sink writes values; the columns of `partition_by` are in the names of the folders.
"""

from penstock.sinks.jsonl.sink import JsonLinesSink

__all__ = ["JsonLinesSink"]
