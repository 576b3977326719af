"""The schema registry beside the brokers: Apicurio, whose store is part of the stack's data.

Its schemas are in a file of the registry's folder, written through at every change: an id that a producer was given
means the same schema after the registry was killed and started again, as the records that carry it are still there.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import requests

from penstock.devstack.processes import log_context, spawn
from penstock.devstack.state import Registry, is_secure, secure_folder
from penstock.errors import MissingError

START_TIMEOUT_SECONDS = 90
# Only one compiler and one connection: it is up in half the time, and serves one user.
_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
_SETTINGS = {
    "quarkus.http.host": "127.0.0.1",
    "quarkus.datasource.jdbc.url": "jdbc:h2:file:./schemas;WRITE_DELAY=0",
    "quarkus.datasource.jdbc.initial-size": 1,
    "quarkus.datasource.jdbc.min-size": 1,
}


def start_registry(java: Path, jar: Path, registry: Registry) -> subprocess.Popen[bytes]:
    """Start the registry; it is ready some seconds later."""
    # The first setting is not for the registry: it is how its process is told from that of another stack.
    settings = {"penstock.stack": registry.folder, **_SETTINGS, **_listening(registry)}
    given = [f"-D{name}={value}" for name, value in settings.items()]
    return spawn([str(java), *_JVM, "-Djava.awt.headless=true", *given, "-jar", str(jar)], registry)


def _listening(registry: Registry) -> dict[str, object]:
    """On its port: TLS alone where the stack is secured. It asks nobody who they are."""
    stack = registry.folder.parent
    if not is_secure(stack):
        return {"quarkus.http.port": registry.port}
    return {
        "quarkus.http.insecure-requests": "disabled",
        "quarkus.http.ssl-port": registry.port,
        "quarkus.http.ssl.certificate.files": secure_folder(stack) / "broker.pem",
        "quarkus.http.ssl.certificate.key-files": secure_folder(stack) / "broker.key",
    }


def await_registry(registry: Registry, child: subprocess.Popen[bytes]) -> None:
    """Wait until the registry answers; raise if it ends before, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        status = child.poll()
        if status is not None:
            raise _died(registry, f"it ended with status {status}")
        if _answers(registry):
            return
        if time.monotonic() > deadline:
            raise _died(registry, f"it did not answer within {START_TIMEOUT_SECONDS} seconds")
        time.sleep(0.1)


def _answers(registry: Registry) -> bool:
    with requests.Session() as session:
        # A proxy of the environment has no way to this machine's loopback.
        session.trust_env = False
        stack = registry.folder.parent
        trusted = str(secure_folder(stack) / "ca.pem") if is_secure(stack) else None
        try:
            return session.get(f"{registry.url}/subjects", timeout=5, verify=trusted).ok
        except requests.RequestException:
            return False


def _died(registry: Registry, what: str) -> MissingError:
    return MissingError(
        "REGISTRY_NOT_STARTED",
        f"starting the schema registry on port {registry.port}: {what}",
        context=log_context(registry.log),
        hint="everything that was started has been ended; `penstock dev down` removes the data as well",
    )
