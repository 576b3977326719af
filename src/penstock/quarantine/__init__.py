"""Where records end that cannot go on, and what is written down about records that are gone."""

from penstock.quarantine.quarantine import (
    GAPS_SCHEMA,
    QUARANTINE_SCHEMA,
    Gap,
    Quarantine,
    RefusingQuarantine,
    gap_rows,
    stage_table,
)

__all__ = ["GAPS_SCHEMA", "QUARANTINE_SCHEMA", "Gap", "Quarantine", "RefusingQuarantine", "gap_rows", "stage_table"]
