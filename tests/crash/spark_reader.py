"""Reads tables by Spark's own Delta and Iceberg, in a process that has nothing to do with the writers.

Enters on standard input: JSON, for each name the relation (`delta.`path`` or `ice.shop.orders`), the columns, and
the session's settings. Leaves on standard output, as the last line: the rows of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.spark.session import start_session, stop_session


def main() -> None:
    asked = json.load(sys.stdin)
    spark = start_session("reader", asked["settings"], tables=True, log=Path(asked["log"]))
    found = {
        name: [list(row) for row in spark.sql(f"SELECT {', '.join(columns)} FROM {relation}").collect()]
        for name, (relation, columns) in asked["tables"].items()
    }
    stop_session(spark)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
