"""Rows to rows, with exactly the values that Spark would give.

Every transform has an Arrow form (`apply`), where it is exact, and a Spark form (`select`), which says the same.
"""

from penstock.transforms.dedupe import Dedupe
from penstock.transforms.derive import Cast, Derive
from penstock.transforms.enrich import Enrich, OnMiss, Unmatched, enrich_steps
from penstock.transforms.expect import ApplyRules, Expect, ExpectRule, expect_steps
from penstock.transforms.explode import Explode, Flatten
from penstock.transforms.expressions import ArrowExpression, NoArrowForm, compile_expression
from penstock.transforms.expressions.parsing import check_columns
from penstock.transforms.lookup import LocalRows, OnDuplicate, TableRows, checked_keys
from penstock.transforms.map_arrow import MapArrow, PythonFrame, Sql
from penstock.transforms.mask import Mask, MaskRule
from penstock.transforms.stateful import Stateful
from penstock.transforms.streaming import DedupeWithin, Join, JoinSide, Watermark, Window
from penstock.transforms.where import Drop, Rename, Where

__all__ = [
    "ApplyRules",
    "ArrowExpression",
    "Cast",
    "Dedupe",
    "DedupeWithin",
    "Derive",
    "Drop",
    "Enrich",
    "Expect",
    "ExpectRule",
    "Explode",
    "Flatten",
    "Join",
    "JoinSide",
    "LocalRows",
    "MapArrow",
    "Mask",
    "MaskRule",
    "NoArrowForm",
    "OnDuplicate",
    "OnMiss",
    "PythonFrame",
    "Rename",
    "Sql",
    "Stateful",
    "TableRows",
    "Unmatched",
    "Watermark",
    "Where",
    "Window",
    "check_columns",
    "checked_keys",
    "compile_expression",
    "enrich_steps",
    "expect_steps",
]
