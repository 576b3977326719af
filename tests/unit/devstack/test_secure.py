"""A secured stack on paper: its files, and what its brokers are told."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from penstock.devstack import Node, Secured, SecureStack
from penstock.devstack.secure import CERTIFIED, USERS, ExtraListener, Tokens
from penstock.devstack.state import is_secure


@pytest.fixture
def secure(tmp_path: Path) -> SecureStack:
    extra = (ExtraListener("OLD", expired=True),)
    tokens = Tokens("http://issuer", "kafka", "http://issuer/keys")
    return SecureStack.make(tmp_path, [1, 2], [9092], Secured(extra, tokens))


def node(folder: Path, number: int) -> Node:
    return Node(id=number, port=9091 + number, controller_port=19091 + number, folder=folder / f"node-{number}")


def test_stack_that_is_made_is_found_again_as_it_was(secure: SecureStack, tmp_path: Path) -> None:
    assert is_secure(tmp_path)
    assert SecureStack.of(tmp_path) == secure
    assert SecureStack.of(tmp_path / "other") is None


def test_secrets_are_open_to_their_owner_alone(secure: SecureStack) -> None:
    assert stat.S_IMODE(secure.folder.stat().st_mode) == 0o700
    public = {"ca.pem", "broker.pem", "old.pem", *(f"{user}.pem" for user in USERS)}
    closed = [file for file in secure.folder.iterdir() if file.name not in public]
    assert {stat.S_IMODE(file.stat().st_mode) for file in closed} == {0o600}
    assert len({secure.password(user) for user in USERS}) == len(USERS)


def test_certificates_are_of_the_authority(secure: SecureStack) -> None:
    context = ssl.create_default_context(cafile=str(secure.folder / "ca.pem"))
    for name in ("broker", *USERS):
        context.load_cert_chain(secure.folder / f"{name}.pem", secure.folder / f"{name}.key")


def test_broker_speaks_tls_on_every_listener_and_knows_whom_to_let_in(secure: SecureStack, tmp_path: Path) -> None:
    told = secure.broker_settings(node(tmp_path, 2))
    protocols = dict(one.split(":") for one in str(told["listener.security.protocol.map"]).split(","))
    assert protocols == {"CLIENT": "SASL_SSL", "CONTROLLER": "SSL", CERTIFIED: "SSL", "OLD": "SASL_SSL"}
    assert f"CLIENT://127.0.0.1:9093,{CERTIFIED}://127.0.0.1:{secure.ports[CERTIFIED]['2']}" in str(told["listeners"])
    assert told["inter.broker.listener.name"] == CERTIFIED
    assert told["listener.name.mtls.ssl.client.auth"] == told["listener.name.controller.ssl.client.auth"] == "required"
    assert told["listener.name.client.sasl.enabled.mechanisms"] == "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER"
    assert told["allow.everyone.if.no.acl.found"] == "false"
    assert told["listener.name.old.ssl.keystore.location"] == secure.folder / "old.keystore.pem"
    assert secure.jvm_flags() == ["-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=http://issuer/keys"]


def test_client_files_are_the_settings_of_a_client_of_each_user(secure: SecureStack) -> None:
    for user in USERS:
        lines = (secure.folder / f"{user}.properties").read_text().splitlines()
        assert dict(line.split("=", 1) for line in lines) == secure.certified_client(user)


def test_clients_of_some_nodes_are_told_of_these_alone(secure: SecureStack) -> None:
    ports = secure.ports[CERTIFIED]
    assert secure.brokers(nodes=[2]) == f"127.0.0.1:{ports['2']}"
    assert secure.certified_client()["bootstrap.servers"] == f"127.0.0.1:{ports['1']},127.0.0.1:{ports['2']}"
