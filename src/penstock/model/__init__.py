"""Frozen values that every other package speaks in."""

from penstock.model.offsets import OffsetRange, TopicPartition
from penstock.model.records import (
    BAD_SCHEMA,
    COMPUTED,
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    HEADERS,
    NO_BAD,
    RAW_SCHEMA,
    TIMESTAMP,
    Split,
    bad_records,
    coordinates_of,
)
from penstock.model.staging import Guarantee, Manifest, MergeRules, Refusal, SlotAttempt
from penstock.model.token import BatchToken

__all__ = [
    "BAD_SCHEMA",
    "COMPUTED",
    "COORDINATES",
    "COORDINATES_FIELD",
    "DELETES",
    "HEADERS",
    "NO_BAD",
    "RAW_SCHEMA",
    "TIMESTAMP",
    "BatchToken",
    "Guarantee",
    "Manifest",
    "MergeRules",
    "OffsetRange",
    "Refusal",
    "SlotAttempt",
    "Split",
    "TopicPartition",
    "bad_records",
    "coordinates_of",
]
