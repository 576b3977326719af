"""The jobs of the transforms part as a blog would write them: a broadcast join, a window, a dedupe with a watermark.

Those with state are given what a tuned job has: the RocksDB state store with its change log, and Penstock's number of
partitions as well as Spark's own.

    python bench/handwritten_transforms.py enrich|window|dedupe SETTINGS

SETTINGS is a JSON object: `brokers`, `topic`, `schema`, `checkpoint`, `table`; for the join also `customers`, with
state `size`, `delay`, `partitions` and `max_offsets`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from handwritten import DELTA, follow, read_orders, start_spark
from pyspark.sql.functions import broadcast, col, count, window
from pyspark.sql.functions import sum as sum_of

_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def main(case: str, settings: dict[str, Any]) -> None:
    """Drain the topic into the table."""
    state = {}
    if "partitions" in settings:
        state = {**_ROCKSDB, "spark.sql.shuffle.partitions": str(settings["partitions"])}
    spark = start_spark({**DELTA, **state})
    where = (settings["brokers"], settings["topic"], settings["schema"], settings.get("max_offsets"))
    orders = {"enrich": enrich, "window": windows, "dedupe": dedupe}[case](read_orders(spark, *where), settings)
    writer = (
        orders.writeStream.format("delta").outputMode("append").option("checkpointLocation", settings["checkpoint"])
    )
    follow(writer.trigger(availableNow=True).start(settings["table"]))
    spark.stop()


def enrich(orders: Any, settings: dict[str, Any]) -> Any:
    """Two columns of the customer beside each order."""
    customers = orders.sparkSession.read.format("delta").load(settings["customers"])
    return orders.join(broadcast(customers.select("customer_id", "name", "credit")), "customer_id", "left")


def windows(orders: Any, settings: dict[str, Any]) -> Any:
    """Orders and their sum for each store and window."""
    groups = orders.withWatermark("event_time", settings["delay"]).groupBy(
        window("event_time", settings["size"]), col("store")
    )
    found = groups.agg(count("*").alias("orders"), sum_of("cents").alias("total"))
    return found.select(col("window.start").alias("window_start"), "store", "orders", "total")


def dedupe(orders: Any, settings: dict[str, Any]) -> Any:
    """Each order once."""
    return orders.withWatermark("event_time", settings["delay"]).dropDuplicatesWithinWatermark(["order_id"])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
