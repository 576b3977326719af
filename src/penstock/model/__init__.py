"""Frozen values that every other package speaks in."""

from penstock.model.offsets import OffsetRange, TopicPartition
from penstock.model.records import (
    BAD_SCHEMA,
    COORDINATES,
    COORDINATES_FIELD,
    HEADERS,
    NO_BAD,
    RAW_SCHEMA,
    TIMESTAMP,
    Split,
    bad_records,
    coordinates_of,
)
from penstock.model.staging import Guarantee, Manifest, SlotAttempt
from penstock.model.token import BatchToken

__all__ = [
    "BAD_SCHEMA",
    "COORDINATES",
    "COORDINATES_FIELD",
    "HEADERS",
    "NO_BAD",
    "RAW_SCHEMA",
    "TIMESTAMP",
    "BatchToken",
    "Guarantee",
    "Manifest",
    "OffsetRange",
    "SlotAttempt",
    "Split",
    "TopicPartition",
    "bad_records",
    "coordinates_of",
]
