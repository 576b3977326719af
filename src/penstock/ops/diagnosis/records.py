"""Records that are not what the file says they are: a storm in the quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.config import PipelineConfig, WatermarkConfig, flows, show_duration
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.diagnosis.figures import Batch
from penstock.ops.wording import percent

_LAST = 5
_SHARE = 0.1
_FEWEST = 20


def quarantine_storm(evidence: Evidence) -> Cause | None:
    """Of the records of the last batches a good part is bad."""
    last = evidence.batches[-_LAST:]
    count, share = sum(batch.quarantined for batch in last), _share(last)
    if count < _FEWEST or share < _SHARE:
        return None
    codes: Counter[str] = Counter()
    for batch in last:
        codes.update(batch.codes)
    told = [f"{count:,} of the last {sum(batch.rows_in for batch in last):,} records went there: {percent(share)}"]
    earlier = (*evidence.before, *evidence.batches[: -len(last)])
    if earlier:
        told.append(f"of the records before it was {percent(_share(earlier))}")
    if codes:
        told.append("codes: " + ", ".join(f"{code} {number:,}" for code, number in codes.most_common(3)))
    if (first := _beginning((*earlier, *last))) is not None:
        told.append(f"it began with batch {first.batch_id} at {first.at:%Y-%m-%d %H:%M:%S} UTC")
    code = codes.most_common(1)[0][0] if codes else None
    return Cause(
        "QUARANTINE_STORM",
        0.6 + 0.35 * share,
        f"{percent(share)} of the records go to quarantine",
        tuple(told),
        _change(evidence, code),
    )


def _share(batches: Sequence[Batch]) -> float:
    records = sum(batch.rows_in for batch in batches)
    return min(1.0, sum(batch.quarantined for batch in batches) / records) if records else 0.0


def _beginning(batches: Sequence[Batch]) -> Batch | None:
    """The first of the bad batches that have not ended since."""
    found = None
    for batch in reversed(batches):
        if batch.rows_in and _share([batch]) < _SHARE:
            break
        found = batch
    return found


def _change(evidence: Evidence, code: str | None) -> str:
    if code == "LATE" and (delay := _delay(evidence.config)) is not None:
        return (
            f"watermark.delay: {show_duration(delay.watermark.delay * 2)} (now {show_duration(delay.watermark.delay)})"
        )
    only = f" --code {code}" if code is not None else ""
    return (
        f"penstock quarantine list {evidence.file}{only} --records 5 shows what they are; correct decode or the "
        f"producer, then penstock quarantine redrive {evidence.file}"
    )


def _delay(config: PipelineConfig) -> WatermarkConfig | None:
    steps = (
        step for flow in flows(config) for step in (*flow.transforms, *(s for o in flow.sides for s in o.transforms))
    )
    return next((step for step in steps if isinstance(step, WatermarkConfig)), None)
