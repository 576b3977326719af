"""Rows as values and keys by the schemas of a registry: Avro, Protobuf, JSON."""
