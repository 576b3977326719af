"""Bytes to columns: record batches in `RAW_SCHEMA` in, good rows and bad records out."""

from penstock.decoders.batch import Tombstones
from penstock.decoders.framing import JudgingDecoder
from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.reason import ExtraFields
from penstock.decoders.keys import KeyedDecoder, TombstoneDecoder
from penstock.decoders.text import RawDecoder, TextDecoder
from penstock.decoders.timed import timed

__all__ = [
    "ExtraFields",
    "JsonDecoder",
    "JudgingDecoder",
    "KeyedDecoder",
    "RawDecoder",
    "TextDecoder",
    "TombstoneDecoder",
    "Tombstones",
    "timed",
]
