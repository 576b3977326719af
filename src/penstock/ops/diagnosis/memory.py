"""Memory that is too small: the JVM collects garbage instead of working."""

from __future__ import annotations

import re

from penstock.config import reveal
from penstock.ops.diagnosis.cause import Cause
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.wording import percent, span

_SHARE = 0.2
_SECONDS = 0.5
_KEY, _DEFAULT = "spark.driver.memory", "1g"


def gc_pressure(evidence: Evidence) -> Cause | None:
    """The JVM of the driver spends a good part of the batches on its garbage."""
    spent, took = sum(batch.gc_seconds for batch in evidence.batches), evidence.seconds
    if len(evidence.batches) < 2 or spent < _SECONDS or spent < _SHARE * took:
        return None
    now = reveal(evidence.config.spark).get(_KEY, _DEFAULT)
    return Cause(
        "GC_PRESSURE",
        0.5 + 0.4 * min(1.0, spent / took),
        f"the JVM spends {percent(min(1.0, spent / took))} of the batches on its garbage",
        (
            f"{evidence.last_batches}: {span(spent)} of {span(took)}; up to {percent(_SHARE)} is usual",
            f"{_KEY} is {now}",
        ),
        f"spark: {{{_KEY}: {_doubled(now)}}}",
    )


def _doubled(memory: str) -> str:
    found = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", memory.strip())
    return f"{int(found[1]) * 2}{found[2]}" if found is not None else "2g"
