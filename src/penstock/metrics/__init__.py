"""Numbers about batches."""

from penstock.metrics.batch import BatchMetrics

__all__ = ["BatchMetrics"]
