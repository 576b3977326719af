"""Where records end that cannot go on, and what is written down about records that are gone."""

from penstock.quarantine.gaps import GAPS_SCHEMA, Gap, gap_rows
from penstock.quarantine.quarantine import QUARANTINE_SCHEMA, Quarantine, stage_table
from penstock.quarantine.refusing import RefusingQuarantine

__all__ = ["GAPS_SCHEMA", "QUARANTINE_SCHEMA", "Gap", "Quarantine", "RefusingQuarantine", "gap_rows", "stage_table"]
