"""The schema that a record names by its id, and whether it may: shared by every format with a registry.

An id that the registry does not know, or that belongs to another subject, is a reason to refuse its records. A
registry that does not answer is not: then the batch is tried again.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.decoders.refusal import UNKNOWN_SCHEMA_ID, WRONG_SUBJECT, Reason
from penstock.errors import TransientError
from penstock.registry import RegisteredSchema, RegistryClient, RegistrySettings, client_of


@runtime_checkable
class JudgingDecoder(Protocol):
    """A decoder that can say beforehand what it would do with records of a schema."""

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        ...


def writer_schema(
    registry: RegistrySettings, schema_id: int, subject: str | None, frozen: bool
) -> RegisteredSchema | Reason:
    """The schema with this id, or why its records are refused. What this process has seen costs no request.

    `frozen` says that the newest schema could not be asked for, so an id not seen yet must wait: that raises.
    """
    client = client_of(registry)
    schema = client.known(schema_id)
    if schema is None:
        if frozen:
            raise TransientError(
                "REGISTRY_UNREACHABLE",
                f"decoding a record with schema id {schema_id}, not seen before: the schema registry is away",
                context={"registry": registry.address},
                hint="the batch is tried again; records with schemas seen before go on meanwhile",
            )
        schema = client.schema(schema_id)
        if schema is None:
            return Reason(UNKNOWN_SCHEMA_ID, f"the schema registry has no schema with the id {schema_id}")
    if subject is None or _belongs(client, schema_id, subject):
        return schema
    owners = ", ".join(sorted(client.subjects(schema_id))) or "no subject at all"
    return Reason(WRONG_SUBJECT, f"schema id {schema_id} belongs to {owners}, and not to {subject}")


def _belongs(client: RegistryClient, schema_id: int, subject: str) -> bool:
    # The same schema may have been registered under one more subject since the registry was asked.
    return subject in client.subjects(schema_id) or subject in client.subjects(schema_id, fresh=True)
