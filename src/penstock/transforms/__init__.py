"""Rows to rows, with exactly the values that Spark would give.

Every transform has an Arrow form (`apply`), where it is exact, and a Spark form (`select`), which says the same.
"""

from penstock.transforms.dedupe import Dedupe
from penstock.transforms.derive import Cast, Derive
from penstock.transforms.expressions import ArrowExpression, NoArrowForm, compile_expression
from penstock.transforms.parsing import check_columns
from penstock.transforms.reshape import Drop, Rename
from penstock.transforms.sql import Sql
from penstock.transforms.where import Where

__all__ = [
    "ArrowExpression",
    "Cast",
    "Dedupe",
    "Derive",
    "Drop",
    "NoArrowForm",
    "Rename",
    "Sql",
    "Where",
    "check_columns",
    "compile_expression",
]
