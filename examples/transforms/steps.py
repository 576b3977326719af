"""A step of enrich.yaml and metrics.yaml that needs a function of Arrow which Spark SQL lacks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def normalized(rows: pa.RecordBatch) -> pa.RecordBatch:
    """City names in one form: composed letters, no blanks around them."""
    city = pc.utf8_normalize(pc.utf8_trim_whitespace(rows.column("city")), form="NFC")
    return rows.set_column(rows.schema.get_field_index("city"), "city", city)
