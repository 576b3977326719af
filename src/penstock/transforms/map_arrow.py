"""`sql`, `python` and `map_arrow`: code of the user's own, over a relation, a Spark frame or record batches.

The function of `map_arrow` gets a record batch with the coordinates last and gives back a record batch or a table, the
same in both lanes. What it leaves out of the coordinates is put back where the rows are as many as before; otherwise it
has to carry them itself. `sql` and `python` are Spark's to run: what is known of their columns is what the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.config.arrow_types import arrow_to_ddl, parse_type
from penstock.config.ddl import ColumnsError
from penstock.config.expressions import place_for_coordinates
from penstock.contracts import FrameTransform
from penstock.errors import DefinitionError, PenstockError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, Refusal, Split
from penstock.transforms.columns import quote, records_of
from penstock.transforms.step import OnError, SparkStep, Step
from penstock.transforms.user import first_line_of, line_of, load, step_failed, user_errors


class Sql(SparkStep):
    """A query over the rows that enter."""

    reason = "`sql` is run by Spark"

    def __init__(self, query: str) -> None:
        self.query = query

    def __repr__(self) -> str:
        return f"sql {' '.join(self.query.split())}"

    def select(self, columns: Sequence[str]) -> str:
        """The query as it is, with the coordinates added to its columns where each row comes from one row."""
        place = place_for_coordinates(self.query) if COORDINATES in columns else None
        if place is None:
            return self.query
        return f"{self.query[:place]}, {quote(COORDINATES)} {self.query[place:]}"


class PythonFrame(SparkStep, FrameTransform):
    """Calls a function of the pipeline's folder with the frame, once, on the driver.

    As in `sql`, rows whose coordinates the function does not keep go on without them.
    """

    reason = "`python` is run by Spark"

    def __init__(self, folder: str, function: str) -> None:
        self.folder, self.function = folder, function

    def __repr__(self) -> str:
        return f"python {self.function}"

    def frame(self, frame: Any) -> Any:
        """What the function makes of the frame."""
        function = load(self.folder, self.function)
        with user_errors(repr(self), self.folder):
            result = function(frame)
        if not isinstance(result, type(frame)):
            raise TerminalError(
                "STEP_WRONG_RESULT",
                f"running {self!r}: it has to give a Spark DataFrame",
                context={"it gave": type(result).__name__},
            )
        return result


class MapArrow(Step):
    """Calls a function of the pipeline's folder with each record batch."""

    def __init__(self, folder: str, function: str, on_error: OnError = "fail", schema: pa.Schema | None = None) -> None:
        self.folder, self.function, self.on_error, self.schema = folder, function, on_error, schema
        self._found: tuple[pa.Schema, pa.Schema] | None = None

    def __repr__(self) -> str:
        return f"map_arrow {self.function}"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The declared columns, or those that the function gives for a batch without rows; the coordinates last."""
        if self._found is None or not self._found[0].equals(schema):
            own = self.schema if self.schema is not None else self._given_for_none(schema)
            carried = [COORDINATES_FIELD] if COORDINATES in schema.names else []
            self._found = schema, pa.schema([*own, *carried])
        return self._found[1]

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Call the function. Where it raises: stop, or find the rows that it raises for and refuse these alone."""
        if rows.num_rows == 0:
            return Split(pa.RecordBatch.from_pylist([], schema=self.output(rows.schema)))
        if self.on_error == "fail" or COORDINATES not in rows.schema.names:
            try:
                return Split(self._run(rows))
            except PenstockError:
                raise
            except Exception as error:
                raise step_failed(repr(self), self.folder, error) from error
        return self._isolate(rows)

    def _isolate(self, rows: pa.RecordBatch) -> Split:
        """Go through the rows in parts, half as large after each failure and twice as large after each success.

        A part that fails is paid for by the rows before it that did not, so that the work stays linear in the rows
        however many are bad.
        """
        done, refused, at, size = [], [], 0, rows.num_rows
        while at < rows.num_rows:
            part = rows.slice(at, size)
            try:
                done.append(self._run(part))
            except (PenstockError, MemoryError):
                raise
            except Exception as error:
                if part.num_rows > 1:
                    size = part.num_rows // 2
                    continue
                refused.append(self._refusal(part, error))
            else:
                size *= 2
            at += part.num_rows
        empty = pa.RecordBatch.from_pylist([], schema=self.output(rows.schema))
        return Split(pa.concat_batches([empty, *done]), refused=tuple(refused))

    def _refusal(self, row: pa.RecordBatch, error: Exception) -> Refusal:
        [record] = records_of(row, [0])
        if record is None:
            raise step_failed(repr(self), self.folder, error) from error
        return Refusal(record, "STEP_FAILED", f"{first_line_of(error)} ({line_of(error, self.folder)})")

    def _run(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        given = self._call(rows)
        if COORDINATES in rows.schema.names and COORDINATES not in given.schema.names:
            if given.num_rows != rows.num_rows:
                raise TerminalError(
                    "STEP_LOST_COORDINATES",
                    f"running {self!r}: it gave other rows, and not where they come from",
                    context={"rows in": rows.num_rows, "rows out": given.num_rows},
                    hint=f'keep the column "{COORDINATES}" of the row that each row is made from',
                )
            given = given.append_column(COORDINATES_FIELD, rows.column(COORDINATES))
        return self._conformed(given, self.output(rows.schema))

    def _call(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        function: Callable[[pa.RecordBatch], Any] = load(self.folder, self.function)
        given = function(rows)
        if isinstance(given, pa.Table):
            parts = given.combine_chunks().to_batches()
            return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=given.schema)
        if isinstance(given, pa.RecordBatch):
            return given
        raise TerminalError(
            "STEP_WRONG_RESULT",
            f"running {self!r}: it has to give a pyarrow RecordBatch or Table",
            context={"it gave": type(given).__name__},
        )

    def _conformed(self, given: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        if sorted(given.schema.names) != sorted(wanted.names):
            raise self._wrong_columns(given.schema, wanted)
        columns = []
        for field in wanted:
            column = given.column(field.name)
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
                    raise self._misfit(given.schema, wanted, isinstance(error, pa.ArrowInvalid)) from error
            if column.null_count and not field.nullable:
                raise self._misfit(given.schema, wanted, True, f'NULL in the NOT NULL column "{field.name}"')
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _misfit(self, given: pa.Schema, wanted: pa.Schema, of_values: bool, what: str = "") -> Exception:
        """Values that do not fit are a matter of some rows, which can be refused; types are one of all."""
        if of_values and self.on_error == "quarantine":
            return ValueError(what or "a value does not fit into the declared type")
        return self._wrong_columns(given, wanted, what)

    def _wrong_columns(self, given: pa.Schema, wanted: pa.Schema, what: str = "") -> TerminalError:
        return TerminalError(
            "STEP_WRONG_COLUMNS",
            f"running {self!r}: {what or 'it gave other columns than it should'}",
            context={"it should give": _listed(wanted), "it gave": _listed(given)},
            hint=None
            if self.schema is not None
            else "its columns are those that it gives for a batch without rows;\n"
            "write `schema:` where they depend on the rows",
        )

    def _given_for_none(self, schema: pa.Schema) -> pa.Schema:
        """What the function makes of no rows, in the types that Penstock carries."""
        try:
            given = self._call(pa.RecordBatch.from_pylist([], schema=schema)).schema
            return pa.schema(_carried(field) for field in given if field.name != COORDINATES)
        except DefinitionError:
            raise
        except ColumnsError as error:
            raise self._needs_schema({"cause": error.message}) from error
        except TerminalError as error:
            raise self._needs_schema(error.context) from error
        except Exception as error:
            raise self._needs_schema({"raised": first_line_of(error), "at": line_of(error, self.folder)}) from error

    def _needs_schema(self, context: dict[str, str]) -> DefinitionError:
        return DefinitionError(
            "STEP_NEEDS_SCHEMA",
            f"finding the columns of {self!r} by calling it with a batch without rows",
            context=context,
            hint='write `schema: "name TYPE, ..."` next to `function:`, or let the function take a batch without rows',
        )


def _carried(field: pa.Field) -> pa.Field:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, parse_type(arrow_to_ddl(kind)), nullable=field.nullable)


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {arrow_to_ddl(field.type)}" for field in schema if field.name != COORDINATES)
