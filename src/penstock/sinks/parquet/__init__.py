"""Plain Parquet files, exactly once by batch, for any reader that can list a folder.

    <path>/_common_metadata                        the columns of all files, as Parquet's own footers hold them
    <path>/penstock_batch=<label>/_manifest.json   the position, and each file with its rows and size
    <path>/penstock_batch=<label>/<column>=<value>/part-....parquet
    <path>/_writers/<writer>.json                  the partitions that a pipeline and sink ever committed
    <path>/../.<name>.penstock/                    what is staged: outside the folder, where no reader looks

The label is a mark of the pipeline and sink, and the number of their commit.

A batch's folder appears by one rename, with everything in it, and never changes: `spark.read.parquet(path)`,
`pyarrow.parquet.read_table(path)` and the glob `<path>/**/*.parquet` only ever see whole batches. Nothing is ever
staged below it: pyarrow looks into hidden folders too, and fails where one goes away meanwhile. Readers that list
the folder give `penstock_batch` as one more column, text: drop it, or use it to read a batch alone. An empty
batch is a folder with its manifest only.

As Hive and Spark write them, the columns of `partition_by` are in the names of the folders and not in the files:
in both places pyarrow would refuse the folder, for the two types differ. Readers guess their types from the text
(Spark makes a number of "007"), unless they are given a schema. The empty text reads back as null.
"""

from penstock.sinks.parquet.sink import ParquetSink

__all__ = ["ParquetSink"]
