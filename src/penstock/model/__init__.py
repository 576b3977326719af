"""Frozen values that every other package speaks in."""

from penstock.model.offsets import OffsetRange, TopicPartition, lag_of, lags_of
from penstock.model.position import Position, Verdict, decide, live_name, redrives_of, replay_of
from penstock.model.records import (
    BAD_SCHEMA,
    COMPUTED,
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    HEADERS,
    LAST_TIMESTAMP,
    NEVER_NULL,
    NO_BAD,
    RAW_SCHEMA,
    TIMESTAMP,
    Split,
    bad_records,
    beyond_timestamps,
    coordinates_of,
)
from penstock.model.staging import Guarantee, Manifest, MergeRules, Refusal, SlotAttempt
from penstock.model.token import BatchToken, Rule

__all__ = [
    "BAD_SCHEMA",
    "COMPUTED",
    "COORDINATES",
    "COORDINATES_FIELD",
    "DELETES",
    "HEADERS",
    "LAST_TIMESTAMP",
    "NEVER_NULL",
    "NO_BAD",
    "RAW_SCHEMA",
    "TIMESTAMP",
    "BatchToken",
    "Guarantee",
    "Manifest",
    "MergeRules",
    "OffsetRange",
    "Position",
    "Refusal",
    "Rule",
    "SlotAttempt",
    "Split",
    "TopicPartition",
    "Verdict",
    "bad_records",
    "beyond_timestamps",
    "coordinates_of",
    "decide",
    "lag_of",
    "lags_of",
    "live_name",
    "redrives_of",
    "replay_of",
]
