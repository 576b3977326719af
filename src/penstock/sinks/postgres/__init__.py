"""PostgreSQL tables: rows copied into staging tables in tasks, one transaction a batch on the driver."""

from penstock.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
