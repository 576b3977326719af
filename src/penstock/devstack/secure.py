"""A secured stack: a certificate authority, certificates, users with passwords, and access control.

In: the folder of a stack. Out: `secure/` in it, with `ca.pem`, a certificate, its key and a password for every user,
all readable by their owner only, with the settings of a client; and the settings of the brokers. All connections use
TLS, those between brokers too. `admin` may do everything, `penstock` everything with topics, groups and transactions,
`guest` nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.devstack.processes import free_ports, put
from penstock.devstack.state import Node, secure_folder

ADMIN, USER, GUEST = "admin", "penstock", "guest"
USERS = (ADMIN, USER, GUEST)
HOSTS = ("localhost", "127.0.0.1")
CERTIFIED = "MTLS"
"""The listener for clients with a certificate, and for the brokers among themselves."""
_BROKER = "broker"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULE = "org.apache.kafka.common.security"
_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


@dataclass(frozen=True)
class ExtraListener:
    """An additional listener for users with passwords, with a certificate of its own: to test bad certificates."""

    name: str
    hosts: tuple[str, ...] = HOSTS
    expired: bool = False


@dataclass(frozen=True)
class Tokens:
    """The issuer of tokens that the brokers accept, and where its keys are."""

    issuer: str
    audience: str
    keys_url: str


@dataclass(frozen=True)
class Secured:
    """Additional parts of a secured stack."""

    extra: tuple[ExtraListener, ...] = ()
    tokens: Tokens | None = None


@dataclass(frozen=True)
class SecureStack:
    """The secured side of the stack in a folder."""

    folder: Path
    ports: Mapping[str, Mapping[str, int]]
    """For each additional listener the port of each node."""
    extra: tuple[ExtraListener, ...] = ()
    tokens: Tokens | None = None

    @classmethod
    def of(cls, stack: Path) -> SecureStack | None:
        """The secured side of the stack in this folder; none if it is not secured."""
        folder = secure_folder(stack)
        try:
            found = json.loads((folder / "layout.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        tokens = Tokens(**found["tokens"]) if found["tokens"] else None
        extra = tuple(ExtraListener(one["name"], tuple(one["hosts"]), one["expired"]) for one in found["extra"])
        return cls(folder, found["ports"], extra, tokens)

    @classmethod
    def make(cls, stack: Path, nodes: Sequence[int], taken: Sequence[int], wanted: Secured) -> SecureStack:
        """Make everything for these nodes, replacing what exists."""
        # Most stacks are not secured.
        from penstock.devstack.certificates import Authority

        folder = secure_folder(stack)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = Authority.make("penstock dev")
        put(folder / "ca.pem", authority.certificate, 0o644)
        authority.issue(_BROKER, HOSTS).save(folder, _BROKER)
        for user in USERS:
            authority.issue(user).save(folder, user)
            put(folder / f"{user}.password", secrets.token_urlsafe(18))
        for one in wanted.extra:
            until = datetime.now(UTC) - timedelta(days=1) if one.expired else None
            authority.issue(_BROKER, one.hosts, until).save(folder, one.name.lower())
        names = (CERTIFIED, *(one.name for one in wanted.extra))
        found = iter(free_ports(len(names) * len(nodes), taken))
        ports = {name: {str(node): next(found) for node in nodes} for name in names}
        layout = {
            "ports": ports,
            "extra": [asdict(one) for one in wanted.extra],
            "tokens": asdict(wanted.tokens) if wanted.tokens else None,
        }
        put(folder / "layout.json", json.dumps(layout, indent=1))
        made = cls(folder, ports, wanted.extra, wanted.tokens)
        for user in USERS:
            settings = made.certified_client(user).items()
            put(folder / f"{user}.properties", "".join(f"{name}={value}\n" for name, value in settings))
        return made

    def password(self, user: str) -> str:
        """The password of a user."""
        return (self.folder / f"{user}.password").read_text(encoding="utf-8")

    def brokers(self, listener: str = CERTIFIED, nodes: Collection[int] | None = None) -> str:
        """The addresses of an additional listener for clients, on all nodes or on these."""
        ports = self.ports[listener].items()
        return ",".join(f"127.0.0.1:{port}" for node, port in ports if nodes is None or int(node) in nodes)

    def certified_client(self, user: str = ADMIN, nodes: Collection[int] | None = None) -> dict[str, str]:
        """The settings of a confluent-kafka client with the certificate of this user."""
        return {
            "bootstrap.servers": self.brokers(nodes=nodes),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "ca.pem"),
            "ssl.certificate.location": str(self.folder / f"{user}.pem"),
            "ssl.key.location": str(self.folder / f"{user}.key"),
        }

    def broker_settings(self, node: Node) -> dict[str, object]:
        """The settings of a secured broker that differ from those of an unsecured one."""
        others = {name: ports[str(node.id)] for name, ports in self.ports.items()}
        mechanisms = (*SCRAM, "PLAIN", *(("OAUTHBEARER",) if self.tokens else ()))
        protocols = {"CLIENT": "SASL_SSL", "CONTROLLER": "SSL", CERTIFIED: "SSL"}
        protocols |= {one.name: "SASL_SSL" for one in self.extra}
        more = ",".join(f"{name}://127.0.0.1:{port}" for name, port in others.items())
        settings: dict[str, object] = {
            "listeners": f"CLIENT://127.0.0.1:{node.port},{more},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"CLIENT://{node.address},{more}",
            "listener.security.protocol.map": ",".join(f"{name}:{speaks}" for name, speaks in protocols.items()),
            "inter.broker.listener.name": CERTIFIED,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / f"{_BROKER}.keystore.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.folder / "ca.pem",
            f"listener.name.{CERTIFIED.lower()}.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            # The user of a certificate is the name in it, as that of a password is.
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{_BROKER};User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "false",
        }
        for name in ("CLIENT", *(one.name for one in self.extra)):
            settings |= self._logins(f"listener.name.{name.lower()}", mechanisms)
        for one in self.extra:
            settings[f"listener.name.{one.name.lower()}.ssl.keystore.location"] = (
                self.folder / f"{one.name.lower()}.keystore.pem"
            )
        if self.tokens:
            settings |= {
                "sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys_url,
                "sasl.oauthbearer.expected.issuer": self.tokens.issuer,
                "sasl.oauthbearer.expected.audience": self.tokens.audience,
            }
        return settings

    def _logins(self, listener: str, mechanisms: Sequence[str]) -> dict[str, object]:
        known = " ".join(f'user_{user}="{self.password(user)}"' for user in USERS)
        settings: dict[str, object] = {f"{listener}.sasl.enabled.mechanisms": ",".join(mechanisms)}
        for mechanism in mechanisms:
            kind = f"{listener}.{mechanism.lower()}"
            if mechanism == "PLAIN":
                login = f"{_MODULE}.plain.PlainLoginModule required {known};"
            elif mechanism == "OAUTHBEARER":
                login = f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required;"
                validator = f"{_MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                settings[f"{kind}.sasl.server.callback.handler.class"] = validator
            else:
                login = f"{_MODULE}.scram.ScramLoginModule required;"
            settings[f"{kind}.sasl.jaas.config"] = login
        return settings

    def jvm_flags(self) -> list[str]:
        """The options of a broker's JVM."""
        return [f"-D{_ALLOWED_URLS}={self.tokens.keys_url}"] if self.tokens else []

    def as_json(self) -> dict[str, object]:
        """Where everything is, for programs."""
        return {
            "ca_file": str(self.folder / "ca.pem"),
            "certificate_brokers": self.brokers(),
            "users": {
                user: {
                    "password_file": str(self.folder / f"{user}.password"),
                    "certificate_file": str(self.folder / f"{user}.pem"),
                    "key_file": str(self.folder / f"{user}.key"),
                    "client_file": str(self.folder / f"{user}.properties"),
                }
                for user in USERS
            },
        }

    def how_to(self, brokers: str) -> str:
        """What to write in a pipeline file."""
        at = self.folder
        return (
            f"  brokers: {brokers}\n"
            "  security:\n"
            f"    ca_file: {at}/ca.pem\n"
            "    mechanism: SCRAM-SHA-512        # or SCRAM-SHA-256, PLAIN\n"
            f"    username: {USER}\n"
            f"    password: ${{file:{at}/{USER}.password}}\n"
            "or, with a certificate instead of a password:\n"
            f"  brokers: {self.brokers()}\n"
            "  security:\n"
            f"    ca_file: {at}/ca.pem\n"
            f"    certificate_file: {at}/{USER}.pem\n"
            f"    key_file: {at}/{USER}.key\n"
            f"For other clients, such as kcat -F: {at}/{USER}.properties"
        )
