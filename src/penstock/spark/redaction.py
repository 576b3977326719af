"""What nobody is to see of Spark's settings: not in its UI, its event log, its plans, or on its command line.

Everybody on a machine can read the command line of a process. So a secret is given to Spark's context once that has
started, never to the JVM's start; and Spark is told by which names it knows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.fields import is_secret

_NAMES = (
    "secret|password|passphrase|passwd|token|credential|access[._-]?key|account[._-]?key|jaas|private[.]?key|key[.]pem"
    "|keystore[.]key|user[.]info|[._]sas[._-]"
)
REDACTION: Mapping[str, str] = {
    "spark.redaction.regex": f"(?i){_NAMES}",
    "spark.sql.redaction.options.regex": f"(?i)url|{_NAMES}",
}
"""Spark's own, which the file may replace. They go by names, and by values in which such a name stands."""


def without_secrets(conf: Any) -> Any:
    """What of a `SparkConf` may stand on a command line."""
    from pyspark import SparkConf

    shown = SparkConf(loadDefaults=False)
    for name, value in conf.getAll():
        if not is_secret(name):
            shown.set(name, value)
    return shown
