"""The jobs as a blog would write them, one a sink, every setting at its default; that to Delta is `handwritten.py`.

    python bench/handwritten_sinks.py merge|iceberg|kafka|postgres SETTINGS

SETTINGS is a JSON object: `brokers`, `topic`, `schema`, `checkpoint`, perhaps `max_offsets`, and what the sink needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from handwritten import DELTA, follow, read_orders, start_spark
from pyspark.sql import Window
from pyspark.sql.functions import col, row_number, struct, to_date, to_json


def main(sink: str, settings: dict[str, Any]) -> None:
    """Drain the topic into the sink."""
    spark = start_spark(iceberg_catalog(settings["warehouse"]) if sink == "iceberg" else DELTA)
    where = (settings["brokers"], settings["topic"], settings["schema"])
    writer = SINKS[sink](spark, read_orders(spark, *where, settings.get("max_offsets")), settings)
    follow(writer.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start())
    spark.stop()


def merge(spark: Any, orders: Any, settings: dict[str, Any]) -> Any:
    """Into a Delta table: the newest event of each order in the batch, then MERGE."""
    columns, table = settings["schema"], f"delta.`{settings['table']}`"
    if settings["dated"]:
        orders = orders.withColumn("order_date", to_date(col("event_time")))
        columns += ", order_date DATE"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta")
    newest = Window.partitionBy("order_id").orderBy(col("event_time").desc())

    def write(batch: Any, _: int) -> None:
        ranked = batch.withColumn("rank", row_number().over(newest))
        ranked.where("rank = 1").drop("rank").createOrReplaceTempView("updates")
        batch.sparkSession.sql(
            f"MERGE INTO {table} t USING updates s ON t.order_id = s.order_id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return orders.writeStream.foreachBatch(write)


def iceberg_catalog(warehouse: str) -> dict[str, str]:
    """A catalog named `lake` in a SQLite file."""
    catalog = "spark.sql.catalog.lake"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": warehouse,
    }


def iceberg(spark: Any, orders: Any, settings: dict[str, Any]) -> Any:
    """Append to an Iceberg table."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
    spark.sql(f"CREATE TABLE IF NOT EXISTS lake.shop.orders ({settings['schema']}) USING iceberg")

    def write(batch: Any, _: int) -> None:
        batch.writeTo("lake.shop.orders").append()

    return orders.writeStream.foreachBatch(write)


def kafka(spark: Any, orders: Any, settings: dict[str, Any]) -> Any:
    """Into another topic, by Spark's own sink; `producer` are settings of its producer."""
    records = orders.select(col("order_id").cast("string").alias("key"), to_json(struct("*")).alias("value"))
    writer = records.writeStream.format("kafka").option("topic", settings["to"])
    writer = writer.option("kafka.bootstrap.servers", settings["brokers"])
    for name, value in settings["producer"].items():
        writer = writer.option(f"kafka.{name}", value)
    return writer


def postgres(spark: Any, orders: Any, settings: dict[str, Any]) -> Any:
    """Append to a PostgreSQL table: Spark has no upsert."""
    known = {"driver": "org.postgresql.Driver", "user": settings["user"], "password": settings["password"]}

    def write(batch: Any, _: int) -> None:
        batch.write.jdbc(settings["url"], settings["table"], mode="append", properties=known)

    return orders.writeStream.foreachBatch(write)


SINKS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "merge": merge,
    "iceberg": iceberg,
    "kafka": kafka,
    "postgres": postgres,
}

if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
