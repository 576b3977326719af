"""The jobs of the formats part as a blog would write them: `from_json`, or `from_avro` with one fixed schema.

The header of the Avro messages is cut off unread: whatever the schema that a record was written with, it is decoded
with this one.

    python bench/handwritten_formats.py json|avro delta|noop SETTINGS

SETTINGS is a JSON object: `brokers`, `topic`, `schema`, `checkpoint`, `table`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from handwritten import follow, read_orders, start_spark
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import expr

from penstock.spark.jars import jar_folder


def main(format: str, sink: str, settings: dict[str, Any]) -> None:
    """Drain the topic into the sink."""
    spark = start_spark(jars=sorted(jar_folder("bench").glob("*.jar")) if format == "avro" else ())
    where = (spark, settings["brokers"], settings["topic"], settings["schema"])
    orders = read_orders(*where) if format == "json" else read_avro(*where)
    writer = orders.writeStream.format(sink).outputMode("append").option("checkpointLocation", settings["checkpoint"])
    writer = writer.trigger(availableNow=True)
    follow(writer.start(settings["table"]) if sink == "delta" else writer.start())
    spark.stop()


def read_avro(spark: Any, brokers: str, topic: str, schema: str) -> Any:
    """The orders of a topic in the Confluent wire format, all taken for `schema`."""
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    body = expr("substring(value, 6, length(value) - 5)")
    return events.select(from_avro(body, schema).alias("order")).select("order.*")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
