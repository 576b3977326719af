"""One way of being let in, for two clients; and what it says of itself."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as form

from penstock.config import load
from penstock.devstack.certificates import Authority
from penstock.errors import MissingError
from penstock.kafka import KafkaSecurity, KafkaSettings, read_security
from penstock.model.pem import DatabaseTls, Pem, read_pem

SCRAM = KafkaSecurity(pem=Pem("CA"), mechanism="SCRAM-SHA-512", username="orders", password='a"b\\c')
TOKENS = KafkaSecurity(
    mechanism="OAUTHBEARER", token_url="https://login/token", client_id="me", client_secret="hunter2", scope="kafka"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of it with its key in several forms."""
    folder = tmp_path_factory.mktemp("pem")
    authority = Authority.make("here")
    (folder / "ca.pem").write_text(authority.certificate)
    authority.issue("orders").save(folder, "orders")
    authority.issue("other").save(folder, "other")
    key = form.load_pem_private_key((folder / "orders.key").read_bytes(), None)
    old = form.PrivateFormat.TraditionalOpenSSL
    (folder / "sec1.key").write_bytes(key.private_bytes(form.Encoding.PEM, old, form.NoEncryption()))
    locked = form.BestAvailableEncryption(b"pass")
    (folder / "locked.key").write_bytes(key.private_bytes(form.Encoding.PEM, old, locked))
    return folder


def test_security_for_librdkafka_holds_the_text_of_the_files() -> None:
    assert KafkaSettings("a:1", {}, SCRAM).for_librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.pem": "CA",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "orders",
        "sasl.password": 'a"b\\c',
    }


def test_security_for_spark_holds_the_same_under_java_s_names() -> None:
    spark = KafkaSettings("a:1", {}, SCRAM).for_spark()
    assert spark["kafka.security.protocol"] == "SASL_SSL"
    assert (spark["kafka.ssl.truststore.type"], spark["kafka.ssl.truststore.certificates"]) == ("PEM", "CA")
    assert spark["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="orders" password="a\\"b\\\\c";'
    )
    assert not {"kafka.sasl.username", "kafka.sasl.password", "kafka.ssl.ca.pem"} & spark.keys()


def test_security_with_a_certificate_is_ssl_in_both() -> None:
    settings = KafkaSettings("a:1", {}, KafkaSecurity(pem=Pem("CA", "CERT", "KEY")))
    one, other = settings.for_librdkafka(), settings.for_spark()
    assert one["security.protocol"] == other["kafka.security.protocol"] == "SSL"
    assert (one["ssl.certificate.pem"], one["ssl.key.pem"]) == ("CERT", "KEY")
    assert other["kafka.ssl.keystore.type"] == "PEM"
    assert (other["kafka.ssl.keystore.certificate.chain"], other["kafka.ssl.keystore.key"]) == ("CERT", "KEY")


def test_security_with_tokens_asks_the_same_endpoint_in_both() -> None:
    settings = KafkaSettings("a:1", {}, TOKENS)
    one, other = settings.for_librdkafka(), settings.for_spark()
    assert one["sasl.oauthbearer.method"] == "oidc"
    assert one["sasl.oauthbearer.token.endpoint.url"] == other["kafka.sasl.oauthbearer.token.endpoint.url"]
    assert (one["sasl.oauthbearer.client.id"], one["sasl.oauthbearer.scope"]) == ("me", "kafka")
    assert 'clientId="me" clientSecret="hunter2" scope="kafka";' in other["kafka.sasl.jaas.config"]
    assert other["kafka.sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")


def test_security_without_tls_is_written_out_as_such() -> None:
    clear = KafkaSettings("a:1", {}, KafkaSecurity(tls=False, mechanism="PLAIN", username="u", password="p"))
    assert clear.for_librdkafka()["security.protocol"] == "SASL_PLAINTEXT"
    assert not [name for name in clear.for_librdkafka() if name.startswith("ssl.")]


def test_security_shows_no_secret() -> None:
    for one in (SCRAM, TOKENS):
        shown = repr(one) + repr(KafkaSettings("a:1", {}, one)) + one.who
        assert not [word for word in ('a"b', "hunter2", "CA)") if word in shown]
    assert repr(Pem("CA", "CERT", "KEY")) == "Pem(ca, certificate, key)"


def test_settings_of_different_users_are_told_apart_and_pickle() -> None:
    one, other = (KafkaSettings("a:1", {}, KafkaSecurity(username=name)) for name in ("a", "b"))
    assert len({one.identity, other.identity}) == 2
    assert pickle.loads(pickle.dumps(one)) == one


def test_options_that_turn_verification_off_are_named() -> None:
    options = {"ssl.endpoint.identification.algorithm": "none", "enable.ssl.certificate.verification": "false"}
    assert KafkaSettings("a:1", options).unverified == tuple(options)
    assert KafkaSettings("a:1", {"enable.ssl.certificate.verification": "true"}).unverified == ()


@pytest.mark.parametrize(("key", "password"), [("orders.key", None), ("sec1.key", None), ("locked.key", "pass")])
def test_key_of_any_form_becomes_one_that_java_takes(made: Path, key: str, password: str | None) -> None:
    files = [str(made / name) for name in ("ca.pem", "orders.pem", key)]
    read = read_pem("security", *files, password)
    assert read.key is not None
    assert read.key.startswith("-----BEGIN PRIVATE KEY-----")
    assert read.ca_path is not None
    assert read.certificate_path is not None
    ssl.create_default_context(cafile=read.ca_path).load_cert_chain(read.certificate_path, read.key_path)


@pytest.mark.parametrize(
    ("certificate", "key", "password", "said"),
    [
        ("orders.pem", "other.key", None, "the key does not match the certificate"),
        ("orders.pem", "locked.key", None, "the key is encrypted"),
        ("orders.pem", "orders.key", "pass", "key_password is given, but the key is not encrypted"),
        ("orders.pem", "locked.key", "wrong", "it contains no key, or key_password is wrong"),
        ("orders.pem", "ca.pem", None, "it contains no key"),
        ("orders.key", "orders.key", None, "it contains no certificate"),
        ("nowhere.pem", "orders.key", None, "No such file or directory"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(
    made: Path, certificate: str, key: str, password: str | None, said: str
) -> None:
    with pytest.raises(MissingError) as raised:
        read_pem("source.security", None, str(made / certificate), str(made / key), password)
    assert raised.value.code == "CERTIFICATE_UNREADABLE"
    assert said in raised.value.summary
    assert raised.value.summary.startswith("reading source.security.")


def test_certificate_of_one_s_own_that_has_expired_is_refused_before_a_connection(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    Authority.make("here").issue("old", until=datetime(2020, 1, 31, tzinfo=UTC)).save(tmp_path, "old")
    with pytest.raises(MissingError) as raised:
        read_pem("source.security", None, str(tmp_path / "old.pem"), str(tmp_path / "old.key"))
    assert raised.value.code == "CERTIFICATE_EXPIRED"
    assert raised.value.context["valid until"] == "2020-01-31 00:00 UTC"


def test_database_tls_verifies_the_host_unless_it_is_off(made: Path) -> None:
    on = DatabaseTls(True, read_pem("s", str(made / "ca.pem"), str(made / "orders.pem"), str(made / "orders.key")))
    settings = on.settings()
    assert settings["sslmode"] == "verify-full"
    assert Path(settings["sslrootcert"]).read_text() == (made / "ca.pem").read_text()
    assert set(settings) == {"sslmode", "sslrootcert", "sslcert", "sslkey"}
    assert Path(settings["sslkey"]).stat().st_mode & 0o077 == 0
    assert DatabaseTls(False).settings() == {"sslmode": "disable"}
    assert DatabaseTls().settings() == {"sslmode": "verify-full", "sslrootcert": "system"}


def test_section_is_read_into_the_settings_of_the_source_and_its_sinks(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.assembly.reaching import settings_of
    from penstock.assembly.targets import build_targets

    monkeypatch.setenv("WORD", "hunter2")
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"""
name: orders
source:
  type: kafka
  brokers: a:1
  topics: [orders]
  security: {{ca_file: {made}/ca.pem, mechanism: PLAIN, username: reader, password: "${{env:WORD}}"}}
  options: {{fetch.wait.max.ms: 5}}
decode: {{format: json, schema: "order_id BIGINT"}}
quarantine: {{topic: bad}}
sinks:
  - {{name: same, type: kafka, topic: one}}
  - name: own
    type: kafka
    topic: two
    security: {{ca_file: {made}/ca.pem, certificate_file: {made}/orders.pem, key_file: {made}/orders.key}}
  - {{name: away, type: kafka, topic: three, brokers: "b:2"}}
checkpoint: checkpoints/orders
"""
    )
    config = load(file)
    source = settings_of(config.source)
    assert source.security == read_security(config.source.security, "source.security")
    assert source.for_librdkafka()["ssl.ca.pem"] == (made / "ca.pem").read_text()
    targets = build_targets(config, source)
    same, own, away = (sink.settings for sink in targets.sinks)  # type: ignore[attr-defined]
    assert same.security == source.security
    assert "fetch.wait.max.ms" not in same.options
    assert own.for_librdkafka()["security.protocol"] == "SSL"
    assert away.security is None
    assert targets.quarantines[0].sink.settings.security == source.security  # type: ignore[attr-defined]
