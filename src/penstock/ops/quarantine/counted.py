"""How many records went to quarantine since some moment: counted in the table, bounded on the topic."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from penstock.assembly.reaching import storage_of
from penstock.config import PipelineConfig
from penstock.errors import MissingError, PenstockError
from penstock.kafka import Cluster, KafkaSettings, Subscription
from penstock.storage import Storage


@dataclass(frozen=True)
class Quarantined:
    """A count; one that is not exact is the most that there can be."""

    records: int
    exact: bool = True


def quarantined_since(
    config: PipelineConfig, settings: KafkaSettings, since: datetime, patience: float
) -> Quarantined | None:
    """The bad records of the pipeline, and of its replays before 0.8, since then; none without a quarantine.

    Of a topic only its offsets are asked for, and the marks that end its transactions have some too.
    """
    quarantine = config.quarantine
    if quarantine is None:
        return None
    if quarantine.table is not None:
        return Quarantined(_in_table(quarantine.table, config.name, since, storage_of(config)))
    if quarantine.topic is not None:
        return _on_topic(Cluster(settings, patience), quarantine.topic, since)
    return None


def _in_table(path: str, pipeline: str, since: datetime, storage: Storage) -> int:
    try:
        held = QueryBuilder().register("held", DeltaTable(path, storage_options=storage.for_delta_at(path)))
        # A name has no quotes in it. By the statistics in the table's log no file of an earlier day is opened.
        found = held.execute(
            f"SELECT count(*) FROM held WHERE (pipeline = '{pipeline}' OR starts_with(pipeline, '{pipeline}.replay-')) "
            f"AND quarantined_at >= arrow_cast('{since.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
        )
        return int(pa.RecordBatchReader.from_stream(found).read_all().column(0)[0].as_py())
    except TableNotFoundError:
        return 0
    except Exception as error:
        raise MissingError(
            "TABLE_UNREACHABLE",
            f"counting what is in quarantine: {type(error).__name__}",
            context={"looked at": path, "cause": str(error).partition("\n")[0]},
        ) from error


def _on_topic(cluster: Cluster, topic: str, since: datetime) -> Quarantined:
    try:
        partitions = cluster.partitions(Subscription((topic,)))
    except PenstockError as error:
        if error.code == "TOPIC_MISSING":
            return Quarantined(0)
        raise
    first, bounds = cluster.offsets_at(partitions, since), cluster.bounds(partitions)
    most = sum(max(0, log.end - first[at]) for at, log in bounds.items() if first.get(at, -1) >= 0)
    return Quarantined(most, exact=most == 0)
