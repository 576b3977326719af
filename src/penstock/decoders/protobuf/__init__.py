"""Protobuf: natively by the reader's descriptors, with whatever the native reader would get wrong read by Google's."""

from penstock.decoders.protobuf.decoder import ProtobufDecoder

__all__ = ["ProtobufDecoder"]
