"""The job as a blog would write it: read, `from_json`, append to Delta, every setting at its default.

Two things are not in the blog: the jars come from the class path, so that no resolver runs at the start, and the
progress that Spark keeps of each batch is printed, one JSON object a line.

    python bench/handwritten.py BROKERS TOPIC SCHEMA TABLE CHECKPOINT available-now|continuous
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from penstock.spark.jars import spark_jars
from penstock.spark.java import find_java


def main(brokers: str, topic: str, schema: str, table: str, checkpoint: str, mode: str) -> None:
    """Run the job until it is drained, or until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    os.environ["JAVA_HOME"] = str(find_java().home)
    spark = (
        SparkSession.builder.appName("orders")
        .master("local[*]")
        .config("spark.driver.extraClassPath", os.pathsep.join(str(jar) for jar in spark_jars()))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    orders = events.select(from_json(col("value").cast("string"), schema).alias("order")).select("order.*")
    writer = orders.writeStream.format("delta").outputMode("append").option("checkpointLocation", checkpoint)
    if mode == "available-now":
        writer = writer.trigger(availableNow=True)
    query = writer.start(table)

    printed = -1
    while not query.awaitTermination(1) and not stop.is_set():
        printed = print_progress(query, printed)
    if query.isActive:
        query.stop()
    print_progress(query, printed)
    spark.stop()


def print_progress(query: Any, printed: int) -> int:
    """Print the progress of the batches after `printed`; give the newest batch."""
    for progress in query.recentProgress:
        if progress.batchId > printed and progress.numInputRows:
            printed = progress.batchId
            print(progress.json.replace("\n", ""), flush=True)
    return printed


if __name__ == "__main__":
    main(*sys.argv[1:])
