"""A certificate authority for this machine only, and its certificates for brokers and clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.devstack.processes import put

_VALID = timedelta(days=825)
# A clock that is slightly slow must not reject a new certificate as not yet valid.
_EARLIER = timedelta(hours=1)


@dataclass(frozen=True, repr=False)
class Issued:
    """A certificate and its key (PKCS#8), as PEM."""

    certificate: str
    key: str

    def save(self, folder: Path, name: str) -> None:
        """As `NAME.pem`, `NAME.key`, and both in `NAME.keystore.pem`, which is what a Java service takes."""
        put(folder / f"{name}.pem", self.certificate, 0o644)
        put(folder / f"{name}.key", self.key)
        put(folder / f"{name}.keystore.pem", self.key + self.certificate)


class Authority:
    """Signs certificates. Its own key stays in its folder."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def make(cls, name: str) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begun(_named(name), _named(name), key, datetime.now(UTC) + _VALID, signs=True)
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return cls(builder.add_extension(own, critical=False).sign(key, hashes.SHA256()), key)

    @property
    def certificate(self) -> str:
        """What others trust, as PEM."""
        return self._certificate.public_bytes(form.Encoding.PEM).decode()

    def issue(self, name: str, hosts: Sequence[str] = (), until: datetime | None = None) -> Issued:
        """A certificate for `name`, by which it may serve these hosts, and be a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = until or datetime.now(UTC) + _VALID
        builder = _begun(_named(name), self._certificate.subject, key, end, signs=False)
        extensions: list[x509.ExtensionType] = [
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
            *([x509.SubjectAlternativeName([_host(host) for host in hosts])] if hosts else []),
        ]
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        plain = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        return Issued(certificate.public_bytes(form.Encoding.PEM).decode(), plain.decode())


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime, *, signs: bool
) -> x509.CertificateBuilder:
    """What every certificate says: of an authority, which `signs`, or of a service or client."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC) - _EARLIER, end - _VALID))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(_usage(signs_certificates=signs), critical=True)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
