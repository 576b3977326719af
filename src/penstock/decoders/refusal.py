"""Why a record is refused: codes that stay, and the exception that carries one out of a deep reader.

A message names the field, the expected type and what kind of value was found; never the value itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from penstock.model import NO_BAD, bad_records

STAGE = "decode"

TOMBSTONE = "TOMBSTONE"
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
INVALID_UTF8 = "INVALID_UTF8"
EMPTY_MESSAGE = "EMPTY_MESSAGE"
MALFORMED_JSON = "MALFORMED_JSON"
NOT_AN_OBJECT = "NOT_AN_OBJECT"
TRAILING_DATA = "TRAILING_DATA"
TOO_DEEP = "TOO_DEEP"
WRONG_TYPE = "WRONG_TYPE"
OUT_OF_RANGE = "OUT_OF_RANGE"
TIMESTAMP_OUT_OF_RANGE = "TIMESTAMP_OUT_OF_RANGE"
MISSING_FIELD = "MISSING_FIELD"
UNKNOWN_FIELD = "UNKNOWN_FIELD"
DUPLICATE_FIELD = "DUPLICATE_FIELD"
SHORT_MESSAGE = "SHORT_MESSAGE"
WRONG_MAGIC = "WRONG_MAGIC"
UNKNOWN_SCHEMA_ID = "UNKNOWN_SCHEMA_ID"
WRONG_SUBJECT = "WRONG_SUBJECT"
WRONG_FINGERPRINT = "WRONG_FINGERPRINT"
WRONG_MESSAGE_INDEX = "WRONG_MESSAGE_INDEX"
SCHEMA_INCOMPATIBLE = "SCHEMA_INCOMPATIBLE"
SCHEMA_UNSUPPORTED = "SCHEMA_UNSUPPORTED"
TRUNCATED = "TRUNCATED"
TOO_MANY_ITEMS = "TOO_MANY_ITEMS"
MALFORMED_AVRO = "MALFORMED_AVRO"
MALFORMED_PROTOBUF = "MALFORMED_PROTOBUF"
TOMBSTONE_KEY = "TOMBSTONE_KEY"


class Reason(NamedTuple):
    """Why a record is bad, as the quarantine keeps it."""

    code: str
    message: str


class RefusedError(Exception):
    """A record, or a part of it, cannot be taken. Caught by the decoder, never seen outside of it."""

    def __init__(self, code: str, problem: str, path: str = "") -> None:
        super().__init__(code, problem, path)
        self.code = code
        self.problem = problem
        self.path = path

    @property
    def reason(self) -> Reason:
        """The code, and what is wrong with the field's path in front. Keep this, not the error and its frames."""
        return Reason(self.code, f"{self.path}: {self.problem}" if self.path else self.problem)

    def inside(self, step: str) -> RefusedError:
        """The same refusal, seen from the enclosing object or list."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return RefusedError(self.code, self.problem, step + joint + self.path)


def refuse(raw: pa.RecordBatch, reasons: Mapping[int, Reason]) -> pa.RecordBatch:
    """The rows of `raw` that have a reason as bad records, in their order."""
    if not reasons:
        return NO_BAD
    rows = sorted(reasons)
    codes = pa.array([reasons[row].code for row in rows], pa.string())
    messages = pa.array([reasons[row].message for row in rows], pa.string())
    return bad_records(raw.take(pa.array(rows, pa.int64())), STAGE, codes, messages)
