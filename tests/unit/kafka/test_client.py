"""What a client says while it waits: which of it is a refusal, and which may pass."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from penstock.devstack.certificates import Authority
from penstock.devstack.processes import free_ports
from penstock.errors import MissingError, TransientError
from penstock.kafka import KafkaSecurity, KafkaSettings
from penstock.kafka.client import ConnectionErrors, refuse_known
from penstock.model.pem import Pem

AUTH = KafkaError._AUTHENTICATION


class Quiet:
    """A client that has nothing to say."""

    def poll(self, seconds: float) -> int:
        return 0


def heard(settings: KafkaSettings, code: int, said: str) -> MissingError | None:
    errors = ConnectionErrors(settings)
    errors(KafkaError(code, said))
    return errors.refusal("listing topics")


def secured(**given: object) -> KafkaSettings:
    return KafkaSettings("127.0.0.1:1", {}, KafkaSecurity(mechanism="PLAIN", username="orders", **given))  # type: ignore[arg-type]


def test_password_that_is_refused_is_told_with_the_user() -> None:
    said = (
        "sasl_ssl://127.0.0.1:1/bootstrap: SASL authentication error: invalid credentials (after 3ms in state AUTH_REQ)"
    )
    told = heard(secured(), AUTH, said)
    assert told is not None
    assert told.code == "KAFKA_NOT_AUTHENTICATED"
    assert told.summary == "listing topics: the brokers do not let user orders by PLAIN in"
    assert told.context["client"].endswith("invalid credentials")


@pytest.mark.parametrize(
    "said",
    [
        "SaslAuthenticateRequest failed: Local: Broker transport failure",
        "Failed to acquire SASL OAUTHBEARER token: Couldn't connect to server",
        "Failed to acquire SASL OAUTHBEARER token: Failed to retrieve OIDC token: Error: (503) Service Unavailable",
    ],
)
def test_login_that_breaks_off_may_pass(said: str) -> None:
    assert heard(secured(), AUTH, said) is None


def test_name_of_a_mechanism_is_not_taken_for_a_status_of_a_server() -> None:
    said = (
        "SASL authentication error: Authentication failed due to invalid credentials with SASL mechanism SCRAM-SHA-512"
    )
    assert heard(secured(), AUTH, said) is not None


def test_refusal_is_remembered_for_clients_with_the_same_settings_alone() -> None:
    one, other = secured(password="one"), secured(password="other")
    assert heard(one, AUTH, "SASL authentication error: no") is not None
    with pytest.raises(MissingError):
        refuse_known(one)
    refuse_known(other)


def test_error_of_a_connection_that_is_refused_by_nobody_may_pass() -> None:
    errors = ConnectionErrors(secured())
    errors(KafkaError(KafkaError._SSL, "ssl://127.0.0.1:1/1: SSL handshake failed: Disconnected"))
    assert errors.refusal() is None

    assert isinstance(errors.failure(Quiet(), KafkaError(KafkaError._TRANSPORT), "listing topics"), TransientError)


class Server:
    """A TLS server that shakes hands and says nothing more."""

    def __init__(self, folder: Path, authority: Authority, hosts: tuple[str, ...], asks_for: str | None = None) -> None:
        authority.issue("server", hosts).save(folder, "server")
        self.port = free_ports(1)[0]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "server.pem", folder / "server.key")
        if asks_for is not None:
            self.context.load_verify_locations(cadata=asks_for)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(peer, server_side=True) as shaken:
                    shaken.recv(1)
            except OSError:
                continue


@pytest.fixture
def authority() -> Iterator[Authority]:
    yield Authority.make("ours")


def tls_told(server: Server, pem: Pem, host: str = "127.0.0.1") -> MissingError | None:
    address = f"{host}:{server.port}"
    settings = KafkaSettings(address, {}, KafkaSecurity(pem=pem, ca_file="ca.pem"))
    said = f"ssl://{address}/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed"
    told = heard(settings, KafkaError._SSL, said)
    server.listener.close()
    return told


def test_certificate_that_is_good_is_no_refusal(tmp_path: Path, authority: Authority) -> None:
    assert tls_told(Server(tmp_path, authority, ("127.0.0.1",)), Pem(authority.certificate)) is None


def test_certificate_of_another_authority_is_told_with_both(tmp_path: Path, authority: Authority) -> None:
    told = tls_told(Server(tmp_path, authority, ("127.0.0.1",)), Pem(Authority.make("theirs").certificate))
    assert told is not None
    assert told.code == "KAFKA_TLS"
    assert (
        told.summary
        == "listing topics: the TLS handshake failed: the broker's certificate is not signed by a trusted CA"
    )
    assert (told.context["the certificate is of"], told.context["trusted"]) == ("CN=ours", "ca.pem")


def test_certificate_of_another_host_is_told_with_both(tmp_path: Path, authority: Authority) -> None:
    told = tls_told(Server(tmp_path, authority, ("kafka.example.com",)), Pem(authority.certificate))
    assert told is not None
    assert told.summary == "listing topics: the TLS handshake failed: the broker's certificate is for another host"
    assert (told.context["connected to"], told.context["the certificate is for"]) == ("127.0.0.1", "kafka.example.com")


def test_certificate_that_is_asked_for_is_told(tmp_path: Path, authority: Authority) -> None:
    server = Server(tmp_path, authority, ("127.0.0.1",), asks_for=authority.certificate)
    told = tls_told(server, Pem(authority.certificate))
    assert told is not None
    assert told.summary == "listing topics: the TLS handshake failed: the broker asks for a client certificate"


def test_file_without_tls_before_a_broker_with_it_is_told(tmp_path: Path, authority: Authority) -> None:
    server = Server(tmp_path, authority, ("127.0.0.1",))
    address = f"127.0.0.1:{server.port}"
    said = (
        f"{address}/bootstrap: Disconnected while requesting ApiVersion: might be caused by incorrect security.protocol"
    )
    told = heard(KafkaSettings(address), KafkaError._TRANSPORT, said)
    server.listener.close()
    assert told is not None
    assert told.summary == "listing topics: the TLS handshake failed: the broker speaks TLS, and the file does not"


def test_broker_that_hangs_up_behind_a_good_handshake_may_ask_for_a_user(tmp_path: Path, authority: Authority) -> None:
    server = Server(tmp_path, authority, ("127.0.0.1",))
    settings = KafkaSettings(f"127.0.0.1:{server.port}", {}, KafkaSecurity(pem=Pem(authority.certificate)))
    told = ConnectionErrors(settings).failure(Quiet(), KafkaError(KafkaError._TRANSPORT), "listing topics")
    server.listener.close()
    assert isinstance(told, TransientError)
    assert "if it asks for a user, add mechanism" in (told.hint or "")
