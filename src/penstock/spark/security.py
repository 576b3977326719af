"""Authentication on Spark's own ports, and redaction of secrets in its settings.

Only processes that know the secret of the application may connect to it. In this process Spark makes a new secret for
every application. A standalone cluster has one secret for its master, its workers and every driver: that of a dev stack
is in a file that only its owner can read, and whose name is on the master's command line. Elsewhere the owner of the
cluster decides; `plan` warns if nothing is set.

Every user of a machine can read the command lines of its processes. So the JVM is started with the few settings that
its start needs, and its context gets the others, including secrets; and Spark is configured with the names that are
secret, for its UI, its event log and its plans, whether it is started here, under spark-submit or from rendered files.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from penstock.config.fields import SECRET_NAMES, is_secret, secret_names
from penstock.spark.placement import Placement

ENABLED, SECRET = "spark.authenticate", "spark.authenticate.secret"
_MASTER = "org.apache.spark.deploy.master.Master"


def authentication(placement: Placement, asked: Mapping[str, str]) -> dict[str, str]:
    """The settings for authentication between Spark's processes, unless the requested settings have them."""
    if ENABLED in asked:
        return {}
    if placement.is_local:
        return {ENABLED: "true"}
    if placement.kind == "standalone" and placement.shares_disk:
        known = _secret_of(placement) if placement.masters else secrets.token_hex(32)
        return {ENABLED: "true", SECRET: known} if known is not None else {}
    return {}


def is_unauthenticated(placement: Placement, asked: Mapping[str, str]) -> bool:
    """Whether any process that reaches the ports of this cluster could act as part of it, as far as we know."""
    return {**authentication(placement, asked), **asked}.get(ENABLED, "false") != "true"


def _secret_of(placement: Placement) -> str | None:
    """The secret of a master on this machine, from the file on its command line; none if it is another user's."""
    ports = {address.rpartition(":")[2] for address in placement.masters}
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        is_own = uids is not None and uids.real == os.getuid()
        if is_own and _MASTER in words and _after(words, "--port") in ports:
            return _read(_after(words, "--properties-file"))
    return None


def _after(words: list[str], option: str) -> str | None:
    at = words.index(option) + 1 if option in words else len(words)
    return words[at] if at < len(words) else None


def _read(file: str | None) -> str | None:
    try:
        lines = Path(file or "").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(" ")[2] for line in lines if line.startswith(f"{SECRET} ")), None)


_SETTINGS, _OPTIONS = "spark.redaction.regex", "spark.sql.redaction.options.regex"
# The environment of remote processes, by which YARN gives a driver its secrets.
_OF_SETTINGS = f"{SECRET_NAMES}|(appmaster|executor|driver)env[.]"
# All options of the Kafka source but the address: plans do not know which of them came from a reference.
_OF_OPTIONS = f"{SECRET_NAMES}|url|^kafka[.](?!bootstrap)"
_AT_START = frozenset(
    f"spark.{name}"
    for name in (
        *("master", "app.name", "submit.deployMode", "submit.pyFiles", "files", "archives"),
        *(f"driver.{one}" for one in ("cores", "memory", "extraClassPath", "extraLibraryPath", "userClassPathFirst")),
        *("driver.extraJavaOptions", "driver.defaultJavaOptions", "kerberos.keytab", "kerberos.principal"),
        *(f"jars{one}" for one in ("", ".packages", ".excludes", ".repositories", ".ivy", ".ivySettings")),
    )
)
"""What a JVM needs at its start. Everything else is given to its context."""


def redaction(settings: Mapping[str, str], there: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings by which Spark redacts secrets in its UI, its event log and its plans.

    They match the names that Penstock knows, those of these settings that came from a reference, and whatever these
    settings or those already `there` match. Spark matches them against names, and against values too.
    """
    # Hadoop's settings are shown without Spark's prefix as well.
    names = (name.removeprefix("spark.hadoop.") for name in secret_names(settings) if not is_secret(name))
    # Without backslashes, which are escapes in Java's properties files.
    own = "".join(f"|{re.sub('[^A-Za-z0-9_]', '.', name)}" for name in sorted(names))
    found = {}
    for key, known in ((_SETTINGS, _OF_SETTINGS), (_OPTIONS, _OF_OPTIONS)):
        said = [one.get(key) for one in (settings, there or {})]
        more = "".join(f"|(?:{one})" for one in dict.fromkeys(said) if one)
        found[key] = f"(?i){known}{own}{more}"
    return found


def for_command_line(conf: Any, secret: Collection[str]) -> Any:
    """The part of a `SparkConf` for a command line: what a JVM's start needs, without the `secret` settings."""
    from pyspark import SparkConf

    shown = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if name in _AT_START and name not in secret:
            shown.set(name, value)
    return shown
