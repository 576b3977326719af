"""The quarantine of bad records, and the table of gaps: offsets that expired before they could be read."""

from penstock.model import QUARANTINE_SCHEMA
from penstock.quarantine.quarantine import (
    GAPS_SCHEMA,
    Gap,
    Quarantine,
    RefusingQuarantine,
    gap_rows,
    stage_table,
)

__all__ = ["GAPS_SCHEMA", "QUARANTINE_SCHEMA", "Gap", "Quarantine", "RefusingQuarantine", "gap_rows", "stage_table"]
