"""TLS with what stands beside the brokers: a database, a registry; and the dev stack as a user starts it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.postgres import PASSWORD, USER, PostgresServer, running_server
from tests.registry import guarded, make_certificate
from tests.secured import write_pipeline
from tests.services.running import PENSTOCK

from penstock.assembly.reaching import database_tls
from penstock.assembly.schemas import registry_settings
from penstock.config import load
from penstock.config.connections import SecurityConfig
from penstock.devstack.certificates import Authority
from penstock.errors import MissingError
from penstock.kafka.tls import speaks_tls
from penstock.registry import client_of
from penstock.sinks.postgres import PostgresSink
from penstock.tables.postgres import PostgresLookup

pytestmark = pytest.mark.services
ROWS = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make("here")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[PostgresServer]:
    """A server that lets clients in by TLS alone, and into the database `certified` only with a certificate."""
    with running_server(tmp_path_factory.mktemp("postgres")) as server:
        server.execute("CREATE DATABASE certified")
        server.execute("CREATE TABLE seen AS SELECT 1::bigint AS id", "certified")
        authority.issue("database", ("127.0.0.1",)).save(server.data, "server")
        (server.data / "ca.pem").write_text(authority.certificate)
        owner = server.data.stat()
        for name in ("server.pem", "server.key", "ca.pem"):
            os.chown(server.data / name, owner.st_uid, owner.st_gid)
        rules = [
            "hostssl certified all all scram-sha-256 clientcert=verify-ca",
            "hostssl all all all scram-sha-256",
            f"hostnossl postgres {USER} all scram-sha-256",
        ]
        (server.data / "pg_hba.conf").write_text("\n".join(rules) + "\n")
        for name, value in (("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key"), ("ssl_ca_file", "ca.pem")):
            server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        server.execute("ALTER SYSTEM SET ssl = on")
        server.restart()
        yield server


def security(folder: Path, authority: Authority, **more: Any) -> SecurityConfig:
    (folder / "ca.pem").write_text(authority.certificate)
    authority.issue("orders").save(folder, "orders")
    return SecurityConfig(ca_file=str(folder / "ca.pem"), **more)


def test_database_is_verified_and_told_who_comes(
    database: PostgresServer, authority: Authority, tmp_path: Path
) -> None:
    own = {"certificate_file": str(tmp_path / "orders.pem"), "key_file": str(tmp_path / "orders.key")}
    tls = database_tls(security(tmp_path, authority, **own), "sink out: security")
    url = database.url("certified")
    sink = PostgresSink("orders", "out", url, "out", tls=tls, create=True)
    sink.prepare(ROWS)
    assert PostgresLookup("seen", url, "seen", tls).schema().names == ["id"]
    used = "SELECT ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE pid = pg_backend_pid()"
    with sink._database.connect() as connection:
        assert connection.execute(used.encode()).fetchone() == (True, "/CN=orders")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("authority", "certificate verify failed"),
        ("host", "does not match host name"),
        ("certificate", "client certificate"),
    ],
)
def test_database_that_is_another_or_refuses_us_is_told_at_once(
    database: PostgresServer, authority: Authority, tmp_path: Path, name: str, said: str
) -> None:
    trusted = Authority.make("another one") if name == "authority" else authority
    tls = database_tls(security(tmp_path, trusted), "sink out: security")
    url = database.url("certified" if name == "certificate" else "postgres")
    if name == "host":
        url = url.replace("127.0.0.1", "localhost")
    for look in (
        lambda: PostgresSink("orders", "out", url, "out", tls=tls, create=True).prepare(ROWS),
        lambda: PostgresLookup("seen", url, "seen", tls).schema(),
    ):
        with pytest.raises(MissingError) as refused:
            look()
        assert refused.value.code in ("SINK_TLS", "TABLE_TLS"), refused.value
        assert said in refused.value.summary
        assert PASSWORD not in str(refused.value)


def test_registry_with_the_section_is_asked_over_tls_by_its_user(
    registry: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORD", "pass word")
    door = make_certificate(tmp_path, "door")
    shown = "Basic " + base64.b64encode(b"orders:pass word").decode()
    with guarded(registry.url, shown, own=door) as url:
        section = {"ca_file": str(door.file), "username": "orders", "password": "${env:WORD}"}
        decode = {"format": "avro", "registry": {"url": url, "security": section}}
        file = write_pipeline(tmp_path, "orders", "a:1", None, decode=decode)
        settings = registry_settings(load(file).decode.registry)  # type: ignore[union-attr]
        assert client_of(settings).schema(987654) is None
        section["password"] = "${env:HOME}"
        file = write_pipeline(tmp_path, "orders", "a:1", None, decode=decode)
        settings = registry_settings(load(file).decode.registry)  # type: ignore[union-attr]
        with pytest.raises(MissingError) as refused:
            client_of(settings).schema(987654)
        assert refused.value.code == "REGISTRY_NOT_AUTHORIZED"


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *words], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_dev_up_secure_prints_what_lets_a_pipeline_in(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    where = ("--dir", str(folder))
    try:
        up = penstock("dev", "up", "--secure", "--port", "19391", *where)
        assert up.returncode == 0, up.stderr
        told = json.loads(penstock("dev", "status", "--json", *where).stdout)
        secure = told["secure"]
        assert f"ca_file: {secure['ca_file']}" in up.stdout
        assert secure["users"]["penstock"]["password_file"] in up.stdout
        assert Path(secure["users"]["penstock"]["password_file"]).stat().st_mode & 0o077 == 0
        assert speaks_tls(told["brokers"])
        # As it is printed: the lines of the section, below a source.
        lines = up.stdout.split("In a pipeline file:\n")[1].split("\nor, with")[0]
        file = tmp_path / "orders.yaml"
        file.write_text(
            f"name: orders\nsource:\n  type: kafka\n  topics: [nowhere]\n{lines}\n"
            'decode: {format: json, schema: "id BIGINT"}\n'
            "sinks: [{name: out, type: delta, path: lake}]\ncheckpoint: c\n"
        )
        assert penstock("validate", str(file)).returncode == 0
        planned = penstock("plan", str(file))
        assert planned.returncode == 3
        assert "TOPIC_MISSING no such topic: nowhere" in planned.stderr
        guest = file.read_text().replace("penstock.password", "guest.password").replace(": penstock\n", ": guest\n")
        file.write_text(guest)
        planned = penstock("plan", str(file))
        assert (planned.returncode, "KAFKA_NOT_AUTHORIZED" in planned.stderr) == (3, True), planned.stderr
        plain = penstock("dev", "up", *where)
        assert "already up" in plain.stdout
    finally:
        down = penstock("dev", "down", *where)
    assert down.returncode == 0
    assert not folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
