"""The cap of a running query, changed between two of its batches without stopping it.

Spark asks each source for its limit once, when the query starts, and keeps the answers in `uniqueSources`; it looks at
them before every batch. Replacing one there takes milliseconds, where a restart takes a third of a second.
"""

from __future__ import annotations

from typing import Any

from penstock.config import KafkaSourceConfig


def set_cap(session: Any, query: Any, source: KafkaSourceConfig, cap: int) -> None:
    """Let every following batch of a query take at most this many offsets; of several sources each has its share."""
    gateway = session.sparkContext._gateway
    limits = gateway.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
    execution = query._jsq.streamingQuery()
    sources = execution.uniqueSources()
    limit = limits.maxRows(max(1, cap // sources.size()))
    if source.min_offsets is not None and source.max_delay is not None:
        both = gateway.new_array(limits, 2)
        both[0] = limits.minRows(source.min_offsets, int(source.max_delay.total_seconds() * 1000))
        both[1] = limit
        limit = limits.compositeLimit(both)
    each, changed = sources.keysIterator(), sources
    while each.hasNext():
        changed = changed.updated(each.next(), limit)
    getattr(execution, "uniqueSources_$eq")(changed)
