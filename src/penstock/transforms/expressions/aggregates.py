"""The types of aggregates, as far as they are known without Spark: for plans and for checks of the sinks."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from penstock.errors import DefinitionError
from penstock.transforms.expressions.expression import ArrowExpression, compile_expression
from penstock.transforms.expressions.parsing import parse_expression

_SAME = (exp.Min, exp.Max, exp.AnyValue, exp.First, exp.Last)
_COUNTS = (exp.Count, exp.ApproxDistinct, exp.CountIf)


def aggregate_type(text: str, schema: pa.Schema) -> pa.DataType | None:
    """The type that Spark gives an aggregate over `schema`, or None where only Spark knows."""
    try:
        tree = parse_expression(text)
    except DefinitionError:
        return None
    if isinstance(tree, _COUNTS):
        return pa.int64()
    if not isinstance(tree, (*_SAME, exp.Sum, exp.Avg)):
        return None
    operand = _type_of(tree.this, schema)
    if operand is None or isinstance(tree, _SAME):
        return operand
    return _summed(operand) if isinstance(tree, exp.Sum) else _averaged(operand)


def _type_of(node: exp.Expr, schema: pa.Schema) -> pa.DataType | None:
    inner = node.this if isinstance(node, exp.Distinct | exp.IgnoreNulls | exp.RespectNulls) else node
    try:
        compiled = compile_expression(inner.sql("spark"), schema)
    except DefinitionError:
        return None
    return compiled.type if isinstance(compiled, ArrowExpression) else None


def _summed(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.decimal128(min(38, kind.precision + 10), kind.scale) if pa.types.is_decimal(kind) else None


def _averaged(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.float64()
    # Of a decimal the scale is cut in ways that depend on the precision: left to Spark.
    return None
