"""The users of a secured stack and what they may do, told to its brokers once they are up."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.devstack.secure import USER, USERS, SecureStack

_TIMEOUT_SECONDS = 15
_ITERATIONS = 4096
_KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


def let_users_in(secure: SecureStack) -> None:
    """Give every user its password, and the one that pipelines come as its rights. Again is the same as once."""
    admin = AdminClient({"log_level": 0, **secure.certified_client()})
    for user in USERS:
        set_password(admin, user, secure.password(user))
    rights = [
        AclBinding(
            kind, "*", ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind in _KINDS
    ]
    for future in admin.create_acls(rights, request_timeout=_TIMEOUT_SECONDS).values():
        future.result(2 * _TIMEOUT_SECONDS)


def set_password(admin: AdminClient, user: str, password: str) -> None:
    """Make a user, or change its password, for both kinds of SCRAM."""
    made = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, _ITERATIONS), password.encode())
        for mechanism in _MECHANISMS
    ]
    # One answer for each user: two changes of one user go in two requests.
    for one in made:
        for future in admin.alter_user_scram_credentials([one], request_timeout=_TIMEOUT_SECONDS).values():
            future.result(2 * _TIMEOUT_SECONDS)
