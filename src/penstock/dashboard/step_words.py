"""The steps of a pipeline in a few words each, and what is known of the number of rows behind them."""

from __future__ import annotations

from typing import Any

from penstock.config import (
    DedupeConfig,
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    JoinConfig,
    MapArrowConfig,
    StatefulConfig,
    TransformConfig,
    WatermarkConfig,
    WindowConfig,
    show_duration,
)

_KEEPING = frozenset({"derive", "rename", "drop", "cast", "flatten", "mask"})


def describe_step(step: TransformConfig) -> str:
    """What a step is about: its columns or its condition. Never a secret: a mask's key is none of them."""
    match step:
        case DedupeConfig():
            return ", ".join(step.keys)
        case EnrichConfig():
            return f"from {step.enrich.table}"
        case ExplodeConfig():
            return step.explode.column
        case MapArrowConfig():
            return step.map_arrow.function
        case WatermarkConfig():
            return f"{step.watermark.column}, {show_duration(step.watermark.delay)}"
        case WindowConfig():
            return ", ".join(step.window.aggregates)
        case JoinConfig():
            return f"{step.join.left} and {step.join.right}"
        case StatefulConfig():
            return step.stateful.cls
    told: Any = getattr(step, step.kind)
    if isinstance(told, str):
        return told
    return ", ".join(told) if isinstance(told, dict | tuple) else ""


def keeps_count(step: TransformConfig) -> bool:
    """Whether as many rows leave a step as enter it, whatever they are."""
    if isinstance(step, EnrichConfig):
        return step.enrich.on_miss == "keep" and step.enrich.on_duplicate != "all"
    return step.kind in _KEEPING


def may_refuse(step: TransformConfig) -> bool:
    """Whether a step may send records to quarantine."""
    match step:
        case ExpectConfig():
            return any(rule.action == "quarantine" for rule in step.expect.values())
        case EnrichConfig():
            return step.enrich.on_miss == "quarantine"
        case MapArrowConfig():
            return step.map_arrow.on_error == "quarantine"
        case WatermarkConfig():
            return step.watermark.late == "quarantine"
    return False
