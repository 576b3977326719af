"""`python`: a function of the user's own, a Spark frame in and a Spark frame out, for what SQL cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.model import Split
from penstock.transforms.raised import told
from penstock.transforms.user import load


class PythonFrame:
    """Calls a function of the pipeline's folder with the frame, once, on the driver.

    As in `sql`, rows whose coordinates the function does not keep go on without them.
    """

    def __init__(self, folder: str, function: str) -> None:
        self.folder, self.function = folder, function

    def __repr__(self) -> str:
        return f"python {self.function}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark."""
        return "`python` is run by Spark"

    def select(self, columns: Sequence[str]) -> str | None:
        """None: `frame` says it."""
        return None

    def names(self, columns: Sequence[str]) -> list[str] | None:
        """None: what columns leave is Spark's to say."""
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """Never known here."""
        raise self._needs_spark()

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Never run here."""
        raise self._needs_spark()

    def frame(self, frame: Any) -> Any:
        """What the function makes of the frame."""
        function = load(self.folder, self.function)
        with told(repr(self), self.folder):
            result = function(frame)
        if not isinstance(result, type(frame)):
            raise TerminalError(
                "STEP_WRONG_RESULT",
                f"running {self!r}: it has to give a Spark DataFrame",
                context={"it gave": type(result).__name__},
            )
        return result

    def _needs_spark(self) -> TerminalError:
        return TerminalError("TRANSFORM_NEEDS_SPARK", "`python` is run by Spark", hint="run it in the frame lane")
