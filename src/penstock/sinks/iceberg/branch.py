"""A batch written by Spark to a branch of its own, which nobody reads until main is moved there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table

from penstock.contracts import SqlEngine
from penstock.model import MergeRules, OffsetRange
from penstock.sinks.iceberg.staged_rows import StagedRows
from penstock.sinks.iceberg.statements import delete, insert, merge, relation_schema
from penstock.sinks.iceberg.types import as_held, quoted

_PROPERTY = "spark.sql.iceberg.snapshot-property."


class BranchWriter:
    """Writes to branches of one table. `name` is the table's for Spark, quoted, with its catalog."""

    def __init__(self, engine: SqlEngine, name: str, settings: Mapping[str, str]) -> None:
        self._engine = engine
        self._name = name
        self._settings = dict(settings)

    def write(
        self,
        branch: str,
        seen: Table,
        files: Sequence[str],
        rows: Sequence[StagedRows],
        columns: Sequence[str],
        rules: MergeRules | None,
        summary: Mapping[str, str],
        replaces: Sequence[OffsetRange] = (),
    ) -> None:
        """Make the branch where `seen` has main, and write the rows to it, with the summary in their snapshot.

        The rows of the ranges that it `replaces` go out first.
        """
        current = seen.current_snapshot()
        base = f" AS OF VERSION {current.snapshot_id}" if current else ""
        self._engine.run(f"ALTER TABLE {self._name} CREATE BRANCH {quoted(branch)}{base}", settings=self._settings)
        target = f"{self._name}.{quoted(f'branch_{branch}')}"
        held = [field.name for field in seen.schema().fields]
        if rules is not None and rows:
            statement = merge(target, rules, columns, held, [item.bounds for item in rows])
        else:
            statement = insert(target, columns, held, rows=bool(rows))
        if replaces and current is not None:
            self._engine.run(delete(target, replaces), settings=self._settings)
        self._engine.run(
            statement,
            files=files,
            schema=relation_schema(as_held(columns, seen.schema())),
            settings={**self._settings, **{f"{_PROPERTY}{name}": value for name, value in summary.items()}},
        )
