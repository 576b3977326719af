"""Translates errors of Spark, its Kafka client and the disk into Penstock's errors: the cause first, and whether it is
transient.

Spark wraps errors of its Kafka source, so only their text can be matched; messages follow those for librdkafka.
Disk-full errors rarely name the disk: the location with the least free space is reported.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.assembly.reaching import places_of
from penstock.config import PipelineConfig, reveal
from penstock.errors import MissingError, PenstockError, TerminalError, TransientError, from_wire
from penstock.kafka.failures import RIGHTS_HINT
from penstock.storage.disk_space import disk_full, is_full, least_room

_PACKAGE = r"org\.apache\.kafka\.common\.errors\."
_UNKNOWN_USER = re.compile(rf"{_PACKAGE}SaslAuthenticationException:? ?([^\n]*)")
_TLS = re.compile(rf"(?:{_PACKAGE}SslAuthenticationException|javax\.net\.ssl\.SSL\w*Exception):? ?([^\n]*)")
_LACKS = re.compile(rf"{_PACKAGE}(Topic|Group|TransactionalId|Cluster)AuthorizationException:? ?([^\n]*)")
_ON = {
    "Topic": "permission on the topic",
    "Group": "permission on the consumer group",
    "TransactionalId": "permission on the transactional id",
    "Cluster": "permission on the cluster",
}
_TLS_CAUSES = (
    (
        re.compile(r"CertificateExpiredException|certificate expired|NotAfter", re.IGNORECASE),
        "the broker's certificate has expired",
        "give the broker a new certificate",
    ),
    (
        re.compile(r"No subject alternative (?:DNS|names?)|No name matching|subject alternative names present"),
        "the broker's certificate is for another host",
        "use a broker host name that is in their certificate, or issue a certificate with this one",
    ),
    (
        re.compile(r"PKIX path|unable to find valid certification path|signature check failed", re.IGNORECASE),
        "the broker's certificate is not signed by a trusted CA",
        "check ca_file: it must contain the CA that signed the brokers' certificates",
    ),
    (
        re.compile(r"fatal alert: (?:certificate_required|bad_certificate|certificate_unknown|unknown_ca)"),
        "the broker rejects the client certificate, or requires one",
        "check certificate_file and key_file",
    ),
)


def access_refusal(text: str, brokers: str | None) -> MissingError | None:
    """The error if a Spark report shows that the brokers rejected the client, or the client the brokers."""
    where = {"brokers": brokers} if brokers else {}
    if found := _UNKNOWN_USER.search(text):
        return MissingError(
            "KAFKA_NOT_AUTHENTICATED",
            "connecting through Spark: the brokers rejected the credentials of this pipeline",
            context={**where, "client": found[1]},
            hint="check username, password and mechanism: the user does not exist, or the password is wrong",
        )
    if found := _LACKS.search(text):
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"connecting through Spark: the user of this pipeline lacks {_ON[found[1]]}",
            context={**where, "client": found[2]},
            hint=RIGHTS_HINT,
        )
    tls = _TLS.search(text)
    if tls is None:
        return None
    for sign, cause, hint in _TLS_CAUSES:
        if sign.search(text):
            said = {**where, "client": tls[1]}
            return MissingError(
                "KAFKA_TLS", f"connecting through Spark: the TLS handshake failed: {cause}", context=said, hint=hint
            )
    # An interrupted handshake: the broker may have stopped.
    return None


@contextmanager
def full_disks_named(config: PipelineConfig) -> Iterator[None]:
    """Name the location with the least free space in disk-full errors."""
    try:
        yield
    except PenstockError as error:
        if is_full(str(error)):
            error.context.update(_least_room(config))
        raise
    except OSError as error:
        if not is_full(error):
            raise
        raise disk_full("running the pipeline", {"cause": error, **_least_room(config)}) from error


def _least_room(config: PipelineConfig) -> dict[str, str]:
    scratch = reveal(config.spark).get("spark.local.dir") or tempfile.gettempdir()
    room = least_room((*places_of(config), scratch))
    return {"least room here": str(room)} if room is not None else {}


_PASSING_CAUSES = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "Timed out waiting for a node assignment",
    "Failed to create new KafkaAdminClient",
    "NotLeaderOrFollowerException",
    "LeaderNotAvailableException",
)
_TOPIC_GONE = "UnknownTopicOrPartitionException: This server does not host"
_STORE_PASSING = re.compile(
    r"SlowDown|\bStatus Code: 5\d\d|AWSStatus500Exception|AWSServiceThrottledException|AWSClientIOException"
    r"|AWSServiceIOException|awssdk\.core\.exception\.(SdkClientException|ApiCall\w*Timeout\w*)"
)
"""Errors that S3A raises inside Spark if the store does not respond properly."""
_OVERTAKEN = re.compile(r"(RemoteFileChangedException|PreconditionFailed|Status Code: 412)")
_UNFIT_PYTHON = re.compile(r"No module named '?penstock|PYTHON_VERSION_MISMATCH|Cannot run program \"[^\"]*python")
_WORKER_LATE = "Python worker failed to connect back"
_MOST = 500
# Spark's own wrappings; what they hold is the cause.
_WRAPPING = re.compile(
    r"^.*?(terminated with exception: |most recent failure: Lost task \S+ in stage .*?\): )", re.DOTALL
)
_JAVA_PACKAGE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*: )")
_CONDITION = re.compile(r"\[(?!STREAM_FAILED|FAILED_EXECUTE_UDF)[A-Z][A-Z0-9_.]{3,}\] [^\n]+")
_PYTHON_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S[^\n]*)")
_PLACES = ("at ", 'File "', "Traceback", "...", "JVM stacktrace", "^", "===", "An error occurred while calling")


def only_reporting_failed(error: BaseException) -> bool:
    """Whether Spark failed in its own progress report after the batch was committed.

    Spark 4.1's Kafka source does so for a batch that is repeated after a restart: the report needs offsets that were
    not fetched (SPARK-57438). Restarting the query continues with the next batch.
    """
    return 'Cannot invoke "scala.collection.IterableOps.map(' in str(error)


def translate_error(error: BaseException, brokers: str | None = None) -> PenstockError:
    """Translate an error of Spark into a Penstock error: the cause first, no Java stack trace."""
    if isinstance(error, PenstockError):
        return error
    text = _whole_text(error)
    found = from_wire(text)
    if found is not None:
        return found
    cause = _cause(text) or type(error).__name__
    if "CONCURRENT_STREAM_LOG_UPDATE" in text or (_OVERTAKEN.search(text) and "MetadataLog" in text):
        return TerminalError(
            "CHECKPOINT_SHARED",
            "writing to the checkpoint: another run of this pipeline was faster",
            context={"cause": cause},
            hint="only one run may use a checkpoint; nothing was lost or duplicated, and the other run continues",
        )
    if (refusal := access_refusal(text, brokers)) is not None:
        return refusal
    if _UNFIT_PYTHON.search(text):
        return MissingError(
            "EXECUTOR_PYTHON_UNFIT",
            "starting tasks on the executors: Python is missing there, has another version, or lacks Penstock",
            context={"cause": cause},
            hint="set a Python of this minor version: cluster: {python: PATH}\n"
            "and ship the packages: cluster: {environment: pack}, or installed there",
        )
    if _WORKER_LATE in text:
        return TransientError(
            "PYTHON_WORKER_LATE",
            "starting Python next to Spark: the process did not answer Spark within 10 seconds",
            context={"cause": cause},
            hint="is the machine overloaded?  Python's own error, if it had one, is in Spark's log",
        )
    if is_full(text):
        return disk_full("running the batch", {"cause": cause})
    if _STORE_PASSING.search(text):
        return TransientError(
            "STORAGE_UNAVAILABLE",
            "connecting to the object store through Spark: unexpected response",
            context={"cause": cause},
            hint="check the endpoint, and whether this machine can reach it",
        )
    if _TOPIC_GONE in text:
        return TransientError(
            "TOPIC_GONE",
            "asking for offsets through Spark: a topic of this pipeline no longer exists",
            context={**({"brokers": brokers} if brokers else {}), "cause": cause},
            hint="was the topic deleted?  remove it from the source, or create it again: a new topic of the same name\n"
            "is read from its first record if on_data_loss allows it",
        )
    if any(sign in text for sign in _PASSING_CAUSES):
        return TransientError(
            "BROKER_UNREACHABLE",
            "asking for offsets through Spark: no answer from the brokers",
            context={**({"brokers": brokers} if brokers else {}), "cause": cause},
            hint="is the broker running?  try: penstock dev status",
        )
    return TerminalError(
        "BATCH_FAILED",
        "running the batch: the Spark job failed",
        context={"cause": cause},
        hint="see Spark's log for details; --debug shows the stack trace",
    )


def checkpoint_gone(path: str, cause: PenstockError) -> TerminalError:
    """The error of a run whose checkpoint was removed, whatever failed first."""
    return TerminalError(
        "CHECKPOINT_GONE",
        f"checkpoint {path}: it was removed while the pipeline ran",
        context={"cause": cause.context.get("cause", cause.summary)},
        hint="restore a backup: penstock checkpoint restore FILE\n"
        "or continue without one, from the positions of the targets: penstock run FILE --resume-from-table",
    )


def refused_step(place: str, step: object, error: BaseException) -> MissingError:
    """A transform that Spark's analysis does not take: an unknown function, types that do not go together."""
    return MissingError(
        "SQL_REFUSED",
        f"{place}: Spark rejects the query",
        context={"cause": _cause(_whole_text(error)) or type(error).__name__, "step": step},
        hint="correct the expression in the pipeline file; nothing was read or written",
    )


def _whole_text(error: BaseException) -> str:
    """The message, and the Java stack that PySpark keeps with it: a cause may be named in there alone."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def _cause(text: str) -> str:
    """The line of a Java or Python stack trace that names the cause."""
    raised = _PYTHON_RAISED.search(text)
    named = _CONDITION.search(text)
    if raised is not None:
        line = raised.group(1)
    elif named is not None:
        line = named.group()
    else:
        lines = (_JAVA_PACKAGE.sub("", _WRAPPING.sub("", line.strip(": \t"))) for line in text.splitlines())
        line = next((line for line in lines if line and not line.startswith(_PLACES)), "")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line)[:_MOST]
