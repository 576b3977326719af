"""The client of a schema registry that speaks the Confluent API: Confluent's own, Apicurio, Redpanda, Karapace."""

from penstock.registry.client import RegistryClient, client_of
from penstock.registry.schemas import ReferencedSchema, RegisteredSchema, RegistrySettings, SchemaKind, SchemaReference

__all__ = [
    "ReferencedSchema",
    "RegisteredSchema",
    "RegistryClient",
    "RegistrySettings",
    "SchemaKind",
    "SchemaReference",
    "client_of",
]
