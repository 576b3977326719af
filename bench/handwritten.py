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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from penstock.spark.jars import spark_jars
from penstock.spark.java import find_java

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(brokers: str, topic: str, schema: str, table: str, checkpoint: str, mode: str) -> None:
    """Run the job until it is drained, or until SIGTERM."""
    spark = start_spark()
    orders = read_orders(spark, brokers, topic, schema)
    writer = orders.writeStream.format("delta").outputMode("append").option("checkpointLocation", checkpoint)
    if mode == "available-now":
        writer = writer.trigger(availableNow=True)
    follow(writer.start(table))
    spark.stop()


def start_spark(settings: Mapping[str, str] = DELTA, jars: Sequence[Path] = ()) -> Any:
    """A session on all cores with the settings of a table format; `jars` are further ones that the job needs."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    builder = (
        SparkSession.builder.appName("orders")
        .master("local[*]")
        .config("spark.driver.extraClassPath", os.pathsep.join(str(jar) for jar in (*spark_jars(), *jars)))
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read_orders(spark: Any, brokers: str, topic: str, schema: str, max_offsets: int | None = None) -> Any:
    """The orders of a topic as a streaming frame."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    events = reader.load()
    return events.select(from_json(col("value").cast("string"), schema).alias("order")).select("order.*")


def follow(query: Any) -> None:
    """Wait for the query's end, or stop it at SIGTERM, and print its progress on the way."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    printed = -1
    while not query.awaitTermination(1) and not stop.is_set():
        printed = print_progress(query, printed)
    if query.isActive:
        query.stop()
    print_progress(query, printed)


def print_progress(query: Any, printed: int) -> int:
    """Print the progress of the batches after `printed`; give the newest batch."""
    for progress in query.recentProgress:
        if progress.batchId > printed and progress.numInputRows:
            printed = progress.batchId
            print(progress.json.replace("\n", ""), flush=True)
    return printed


if __name__ == "__main__":
    main(*sys.argv[1:])
