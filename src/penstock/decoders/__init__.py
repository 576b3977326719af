"""Bytes to columns: record batches in `RAW_SCHEMA` in, good rows and bad records out."""

from penstock.decoders.batch import RecordDecoder, Tombstones
from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.reason import ExtraFields
from penstock.decoders.keys import KeyedDecoder, TombstoneDecoder
from penstock.decoders.text import RawDecoder, TextDecoder

__all__ = [
    "ExtraFields",
    "JsonDecoder",
    "KeyedDecoder",
    "RawDecoder",
    "RecordDecoder",
    "TextDecoder",
    "TombstoneDecoder",
    "Tombstones",
]
