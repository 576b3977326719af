"""Where rows end. Every sink passes the suite in `tests/contract`."""

from penstock.sinks.delta import DeltaSink

__all__ = ["DeltaSink"]
