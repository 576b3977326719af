"""A column and its type, as Spark SQL knows them. No Arrow here: checking a file does not need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIMPLE: Mapping[str, str] = {
    "BOOLEAN": "bool_",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32",
}
"""The types without parts, and the Arrow function that makes each."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A Spark SQL type."""

    name: str
    precision: int = 0
    scale: int = 0
    items: tuple[ColumnType, ...] = ()
    fields: tuple[Column, ...] = ()

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision}, {self.scale})"
        inner = [*map(str, self.items), *map(str, self.fields)]
        return f"{self.name}<{', '.join(inner)}>" if inner else self.name

    @property
    def nested(self) -> bool:
        """Whether it holds other values."""
        return self.name in ("ARRAY", "MAP", "STRUCT")


@dataclass(frozen=True, slots=True)
class Column:
    """A named type."""

    name: str
    type: ColumnType
    nullable: bool = True
    comment: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.nullable else " NOT NULL")
