"""JSON: whole blocks through Arrow's reader, and what it will not take one by one; with or without a registry."""

from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.reason import ExtraFields

__all__ = ["ExtraFields", "JsonDecoder"]
