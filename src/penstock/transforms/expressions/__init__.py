"""Spark SQL expressions over Arrow, where the two agree on every value, NULL, type and failure."""

from penstock.transforms.expressions.expression import ArrowExpression, LazyExpressions, NoArrowForm, compile_expression
from penstock.transforms.expressions.parsing import check_columns

__all__ = ["ArrowExpression", "LazyExpressions", "NoArrowForm", "check_columns", "compile_expression"]
