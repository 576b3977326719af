"""Certificates and keys as PEM text: read on the driver, carried to tasks, never shown.

Executors of a cluster do not share the driver's disk, so a task is sent what the files hold, not where they are. A
library that wants paths is given files that only this process can open.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import MissingError

_MOST_BYTES = 1 << 20
_HINT = "the path is relative to the pipeline file; the file must be PEM text: -----BEGIN ..."
_files: dict[str, str] = {}
"""The files written for libraries that need paths."""


@dataclass(frozen=True, slots=True, repr=False)
class Pem:
    """An authority to trust, and a certificate of one's own with its key; the key is PKCS#8, without a password."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Pem({', '.join(name for name in self.__slots__ if getattr(self, name) is not None)})"

    @property
    def ca_path(self) -> str | None:
        """The authority as a file."""
        return _written(self.ca)

    @property
    def certificate_path(self) -> str | None:
        """The certificate as a file."""
        return _written(self.certificate)

    @property
    def key_path(self) -> str | None:
        """The key as a file."""
        return _written(self.key)


NO_FILES = Pem()


def read_pem(
    where: str,
    ca_file: str | None = None,
    certificate_file: str | None = None,
    key_file: str | None = None,
    key_password: str | None = None,
) -> Pem:
    """Read the files that a section names, `where` for messages; what cannot be used is refused before a connection."""
    ca = _read(where, "ca_file", ca_file)
    certificate = _read(where, "certificate_file", certificate_file)
    if ca is not None:
        _check_certificates(where, "ca_file", str(ca_file), ca)
    if certificate is None:
        return Pem(ca)
    own = _check_certificates(where, "certificate_file", str(certificate_file), certificate)
    until: datetime = own.not_valid_after_utc
    if until < datetime.now(UTC):
        raise MissingError(
            "CERTIFICATE_EXPIRED",
            f"reading {where}.certificate_file: the certificate has expired",
            context={"file": certificate_file, "valid until": _day(until), "it is now": _day(datetime.now(UTC))},
            hint="replace it with a new one",
        )
    text = certificate if key_file is None else _read(where, "key_file", key_file)
    assert text is not None
    key = _plain_key(where, str(key_file or certificate_file), text, key_password, own)
    return Pem(ca, certificate, key)


def _read(where: str, name: str, file: str | None) -> str | None:
    if file is None:
        return None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise _unreadable(where, name, file, reason or "it cannot be read") from None
    if len(text) > _MOST_BYTES:
        raise _unreadable(where, name, file, f"it is larger than {_MOST_BYTES:,} bytes")
    return text


def _unreadable(where: str, name: str, file: str, reason: str, hint: str = _HINT) -> MissingError:
    return MissingError(
        "CERTIFICATE_UNREADABLE", f"reading {where}.{name}: {reason}", context={"file": file}, hint=hint
    )


def _check_certificates(where: str, name: str, file: str, text: str) -> Any:
    """The first certificate of the text."""
    # Loaded where it is needed: most pipelines have no certificates.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise _unreadable(where, name, file, "it contains no certificate") from None
    return found[0]


def _plain_key(where: str, file: str, text: str, password: str | None, own: Any) -> str:
    """The key as every client takes it: Java wants PKCS#8, and its own way of encrypting it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    try:
        key = form.load_pem_private_key(text.encode(), password.encode() if password is not None else None)
    except TypeError:
        if password is None:
            reason, hint = "the key is encrypted", "add key_password: ${env:NAME}"
        else:
            reason, hint = "key_password is given, but the key is not encrypted", "remove key_password"
        raise _unreadable(where, "key_file", file, reason, hint) from None
    except (ValueError, UnsupportedAlgorithm):
        reason = "it contains no key" if password is None else "it contains no key, or key_password is wrong"
        raise _unreadable(where, "key_file", file, reason) from None
    spki = (form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*spki) != own.public_key().public_bytes(*spki):
        raise _unreadable(where, "key_file", file, "the key does not match the certificate", "use a matching pair")
    whole = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return whole.decode()


def _written(text: str | None) -> str | None:
    """The text as a file, the same one for the same text. In memory, where the system can: nothing is left behind."""
    if text is None:
        return None
    known = _files.get(text)
    if known is None:
        known = _files[text] = _in_memory(text) if hasattr(os, "memfd_create") else _in_folder(text)
    return known


def _in_memory(text: str) -> str:
    handle = os.memfd_create("penstock-pem")
    os.fchmod(handle, 0o600)
    os.write(handle, text.encode())
    # Open for as long as the process, and in those that are forked from it.
    return f"/proc/self/fd/{handle}"


def _in_folder(text: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="penstock-pem-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "pem"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    return str(file)


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class DatabaseTls:
    """TLS with a database: not at all, or with its certificate and host name verified."""

    on: bool = True
    pem: Pem = NO_FILES

    def settings(self) -> dict[str, str]:
        """As libpq names them, with files of this process."""
        if not self.on:
            return {"sslmode": "disable"}
        given = {
            "sslrootcert": self.pem.ca_path or "system",
            "sslcert": self.pem.certificate_path,
            "sslkey": self.pem.key_path,
        }
        return {"sslmode": "verify-full", **{name: path for name, path in given.items() if path is not None}}
