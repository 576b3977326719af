"""From where records are to raw Arrow record batches."""

from penstock.readers.kafka import KafkaReader

__all__ = ["KafkaReader"]
