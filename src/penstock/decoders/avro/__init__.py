"""Avro: each record by the schema that wrote it, natively, resolved to the reader's as whole columns."""

from penstock.decoders.avro.decoder import AvroDecoder, avro_columns, avro_reader

__all__ = ["AvroDecoder", "avro_columns", "avro_reader"]
