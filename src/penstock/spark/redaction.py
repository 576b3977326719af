"""What nobody is to see of Spark's settings: not in its UI, its event log, its plans, or on its command line.

Everybody on a machine can read the command line of a process. So the JVM is started with the few settings that its
start needs, and its context gets the others, secrets among them; and Spark is told by which names it knows one. However
Spark is started, here, under spark-submit or from rendered files, the names are the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from penstock.config.fields import SECRET_NAMES, is_secret, secret_names

_SETTINGS, _OPTIONS = "spark.redaction.regex", "spark.sql.redaction.options.regex"
# The environment of processes elsewhere, by which YARN gives a driver its secrets.
_OF_SETTINGS = f"{SECRET_NAMES}|(appmaster|executor|driver)env[.]"
# Of the Kafka source all but the address: which of its options came by a reference is not known where plans are shown.
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
"""What a JVM has to know before it runs. Everything else is given to its context."""


def redaction(settings: Mapping[str, str], there: Mapping[str, str] | None = None) -> dict[str, str]:
    """By which names Spark is to know the secrets in its UI, its event log and its plans.

    They are those that Penstock knows, those of these settings that came by a reference, and whatever the settings or
    those already `there` say themselves. Spark looks for them in names, and in values too.
    """
    # Hadoop's settings are shown without Spark's prefix as well.
    names = (name.removeprefix("spark.hadoop.") for name in secret_names(settings) if not is_secret(name))
    # Without backslashes, which Java's properties files take for themselves.
    own = "".join(f"|{re.sub('[^A-Za-z0-9_]', '.', name)}" for name in sorted(names))
    found = {}
    for key, known in ((_SETTINGS, _OF_SETTINGS), (_OPTIONS, _OF_OPTIONS)):
        said = [one.get(key) for one in (settings, there or {})]
        more = "".join(f"|(?:{one})" for one in dict.fromkeys(said) if one)
        found[key] = f"(?i){known}{own}{more}"
    return found


def for_command_line(conf: Any, secret: Collection[str]) -> Any:
    """What of a `SparkConf` stands on a command line: what a JVM's start needs, and none of the settings named here."""
    from pyspark import SparkConf

    shown = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if name in _AT_START and name not in secret:
            shown.set(name, value)
    return shown
