"""The registry client against the real registry, also through TLS and credentials, and while the registry is away."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.registry import RegistryServer, guarded, make_certificate

from penstock.errors import MissingError, TransientError
from penstock.registry import ReferencedSchema, RegistryClient, RegistrySettings, SchemaReference, client_of

pytestmark = pytest.mark.services

ORDER = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
ORDER_2 = ORDER.replace("}]}", '},{"name":"note","type":["null","string"],"default":null}]}')
ORDER_BROKEN = ORDER.replace("}]}", '},{"name":"must","type":"string"}]}')


@pytest.fixture
def client(registry: RegistryServer) -> RegistryClient:
    return RegistryClient(RegistrySettings(registry.url, retries=0))


def avro(name: str, *fields: str) -> str:
    members = ",".join(f'{{"name":"f{number}","type":"{each}"}}' for number, each in enumerate(fields))
    return f'{{"type":"record","name":"{name}","fields":[{members}]}}'


def test_schema_registered_is_found_by_id_subject_and_version(registry: RegistryServer, client: RegistryClient) -> None:
    subject = registry.subject()
    first = client.register(subject, "AVRO", ORDER)
    assert client.latest(subject).id == first
    second = client.register(subject, "AVRO", ORDER_2)
    newest = client.latest(subject)
    assert (newest.id, newest.subject, newest.version, newest.text) == (second, subject, 2, ORDER_2)
    assert client.versions(subject) == [1, 2]
    assert client.version(subject, 1).text == ORDER
    found = client.schema(first)
    assert found is not None
    assert (found.id, found.kind, found.text, found.references, found.subject) == (first, "AVRO", ORDER, (), None)


def test_schema_written_by_an_independent_producer_is_found_by_the_id_of_its_message(
    registry: RegistryServer, client: RegistryClient
) -> None:
    topic = registry.subject().removesuffix("-value")
    serializer = AvroSerializer(SchemaRegistryClient({"url": registry.url}), ORDER)
    message = serializer({"id": 5}, SerializationContext(topic, MessageField.VALUE))
    found = client.schema(int.from_bytes(message[1:5]))
    assert found is not None
    assert found.id == client.latest(f"{topic}-value").id
    assert f"{topic}-value" in client.subjects(found.id)


def test_schema_of_every_kind_keeps_kind_and_text(registry: RegistryServer, client: RegistryClient) -> None:
    proto = 'syntax = "proto3";\n\nmessage Order {\n  int64 id = 1;\n}\n'
    json_schema = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    for kind, text in (("PROTOBUF", proto), ("JSON", json_schema), ("AVRO", '"string"')):
        found = client.schema(client.register(registry.subject(), kind, text))  # type: ignore[arg-type]
        assert found is not None
        assert (found.kind, found.text) == (kind, text)


def test_schema_found_once_needs_no_registry(registry: RegistryServer, client: RegistryClient) -> None:
    subject = registry.subject()
    schema_id = client.register(subject, "AVRO", ORDER)
    assert client.known(schema_id) is None
    found = client.schema(schema_id)
    registry.kill()
    try:
        assert client.known(schema_id) == client.schema(schema_id) == found
        with pytest.raises(TransientError) as caught:
            client.schema(schema_id + 1)
        assert caught.value.code == "REGISTRY_UNREACHABLE"
        with pytest.raises(TransientError):
            client.latest("anything")
    finally:
        registry.restart()
    again = RegistryClient(client.settings)
    assert again.schema(schema_id) == found, "the same id, the same schema, after a kill"
    assert client.latest(subject).id == schema_id, "and the old client goes on"


@pytest.mark.parametrize("unknown", [987654321, 0, 2**31, 2**32 - 1, -1])
def test_schema_with_an_unknown_id_is_none_and_asked_for_again(client: RegistryClient, unknown: int) -> None:
    assert client.schema(unknown) is None
    assert client.known(unknown) is None
    assert client.subjects(unknown) == frozenset()


def test_subjects_of_a_shared_schema_are_all_named_when_asked_afresh(
    registry: RegistryServer, client: RegistryClient
) -> None:
    one, other, text = registry.subject(), registry.subject(), avro("Shared", "int")
    schema_id = client.register(one, "AVRO", text)
    assert client.subjects(schema_id) == {one}
    assert client.register(other, "AVRO", text) == schema_id
    assert client.subjects(schema_id) == {one}
    assert client.subjects(schema_id, fresh=True) == {one, other}
    assert client.subjects(schema_id) == {one, other}


def test_references_come_transitively_and_dependencies_first(registry: RegistryServer, client: RegistryClient) -> None:
    street, address, person = (registry.subject(each) for each in ("street", "address", "person"))
    texts = {street: avro("Street", "string"), address: avro("Address", "Street"), person: avro("Person", "Address")}
    client.register(street, "AVRO", texts[street])
    below = [SchemaReference("Street", street, 1)]
    client.register(address, "AVRO", texts[address], below)
    references = [SchemaReference("Address", address, 1), *below]
    schema_id = client.register(person, "AVRO", texts[person], references)
    expected = (ReferencedSchema("Street", texts[street]), ReferencedSchema("Address", texts[address]))
    by_id = client.schema(schema_id)
    assert by_id is not None
    assert by_id.references == expected
    assert client.latest(person).references == expected
    assert client.registered(person, "AVRO", texts[person], references) == schema_id
    assert client.registered(person, "AVRO", texts[person]) is None


def test_subject_that_is_missing_is_named(client: RegistryClient) -> None:
    for ask in (client.latest, client.versions):
        with pytest.raises(MissingError) as caught:
            ask("no-such-value")
        assert caught.value.code == "REGISTRY_SUBJECT_MISSING"
        assert "no-such-value" in caught.value.summary


def test_version_that_is_missing_is_named(registry: RegistryServer, client: RegistryClient) -> None:
    subject = registry.subject()
    client.register(subject, "AVRO", ORDER)
    with pytest.raises(MissingError) as caught:
        client.version(subject, 7)
    assert caught.value.code == "REGISTRY_VERSION_MISSING"


def test_subject_with_signs_in_its_name_is_kept_apart(registry: RegistryServer, client: RegistryClient) -> None:
    subject = f"a b/ü:c?d#e%2F {registry.subject()}"
    schema_id = client.register(subject, "AVRO", ORDER)
    assert client.latest(subject).id == schema_id
    assert subject in client.subjects(schema_id, fresh=True)


def test_registered_tells_what_is_there_without_registering(registry: RegistryServer, client: RegistryClient) -> None:
    subject = registry.subject()
    assert client.registered(subject, "AVRO", ORDER) is None
    schema_id = client.register(subject, "AVRO", ORDER)
    assert client.registered(subject, "AVRO", ORDER) == schema_id
    assert client.register(subject, "AVRO", ORDER) == schema_id
    assert client.registered(subject, "AVRO", ORDER_2) is None
    assert client.versions(subject) == [1]


def test_register_of_an_incompatible_schema_is_refused(registry: RegistryServer, client: RegistryClient) -> None:
    subject = registry.subject()
    client.register(subject, "AVRO", ORDER)
    registry.compatibility(subject, "BACKWARD")
    with pytest.raises(MissingError) as caught:
        client.register(subject, "AVRO", ORDER_BROKEN)
    assert caught.value.code == "REGISTRY_REFUSED"
    assert "409" in caught.value.context["it answered"]
    assert "must" in caught.value.context["it answered"]
    assert client.versions(subject) == [1]


def test_register_of_an_invalid_schema_is_refused(registry: RegistryServer, client: RegistryClient) -> None:
    with pytest.raises(MissingError) as caught:
        client.register(registry.subject(), "AVRO", '{"type":"rec')
    assert caught.value.code == "REGISTRY_REFUSED"


def test_url_of_another_api_is_not_taken_for_an_empty_registry(registry: RegistryServer) -> None:
    root = registry.url.removesuffix("/apis/ccompat/v7")
    for url in (root, f"{root}/apis", f"{root}/ui"):
        with pytest.raises(MissingError) as caught:
            RegistryClient(RegistrySettings(url)).schema(1)
        assert caught.value.code == "REGISTRY_NOT_THERE", url


CREDENTIALS: list[tuple[str, dict[str, Any]]] = [
    ("Basic " + base64.b64encode("us\u00e9r:pa:ss".encode()).decode(), {"username": "us\u00e9r", "password": "pa:ss"}),
    ("Bearer abc.def", {"token": "abc.def"}),
]


@pytest.mark.parametrize(("header", "given"), CREDENTIALS, ids=["basic", "bearer"])
def test_credentials_open_a_guarded_registry_and_wrong_ones_do_not(
    registry: RegistryServer, header: str, given: dict[str, Any]
) -> None:
    with guarded(registry.url, header) as url:
        client = RegistryClient(RegistrySettings(url, **given))
        schema_id = client.register(registry.subject(), "AVRO", ORDER)
        assert client.schema(schema_id) is not None
        for wrong in ({}, {"username": "u", "password": "sesame"}, {"token": "sesame"}):
            with pytest.raises(MissingError) as caught:
                RegistryClient(RegistrySettings(url, **wrong)).schema(schema_id)
            assert caught.value.code == "REGISTRY_NOT_AUTHORIZED"
            assert "sesame" not in str(caught.value)


def test_tls_with_the_right_authority_goes_through_and_without_it_does_not(
    registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stranger = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "stranger")
    # What the settings name wins over the environment.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(stranger.file))
    with guarded(registry.url, "Bearer t", own) as url:
        trusting = RegistrySettings(url, token="t", ca_file=str(own.file))
        client = client_of(pickle.loads(pickle.dumps(trusting)))
        assert client.register(registry.subject(), "AVRO", ORDER) > 0
        for wrong in (None, str(stranger.file), str(tmp_path / "missing.pem"), str(own.key)):
            with pytest.raises(MissingError) as caught:
                RegistryClient(RegistrySettings(url, token="t", ca_file=wrong)).versions("s")
            assert caught.value.code == "REGISTRY_TLS", wrong
        with pytest.raises((MissingError, TransientError)):
            RegistryClient(RegistrySettings(url.replace("https", "http"), token="t", retries=0)).versions("s")


def test_tls_that_asks_for_a_client_certificate_takes_only_the_right_one(
    registry: RegistryServer, tmp_path: Path
) -> None:
    own, mine, stranger = (make_certificate(tmp_path, each) for each in ("server", "mine", "stranger"))
    with guarded(registry.url, None, own, mine) as url:

        def asked(certificate_file: Path | None, key_file: Path | None) -> list[int]:
            files = [None if each is None else str(each) for each in (own.file, certificate_file, key_file)]
            settings = RegistrySettings(url, ca_file=files[0], certificate_file=files[1], key_file=files[2], retries=0)
            client = RegistryClient(settings)
            client.register("guarded-value", "AVRO", ORDER)
            return client.versions("guarded-value")

        assert asked(mine.file, mine.key) == [1]
        both = tmp_path / "both.pem"
        both.write_bytes(mine.file.read_bytes() + mine.key.read_bytes())
        assert asked(both, None) == [1]
        for unusable in ((mine.file, stranger.key), (tmp_path / "no", None)):
            with pytest.raises(MissingError) as caught:
                asked(*unusable)
            assert caught.value.code == "REGISTRY_TLS", unusable
        # Under TLS 1.3 the refusal comes after the handshake: as an alert, or as an end of the connection.
        for refused in ((None, None), (stranger.file, stranger.key)):
            with pytest.raises((MissingError, TransientError)) as turned_away:
                asked(*refused)
            assert turned_away.value.code in ("REGISTRY_TLS", "REGISTRY_UNREACHABLE")


def test_compatibility_of_the_tests_registry_is_none_by_default(registry: RegistryServer) -> None:
    assert requests.get(f"{registry.url}/config", timeout=30).json() == {"compatibilityLevel": "NONE"}
