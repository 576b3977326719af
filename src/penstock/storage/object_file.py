"""An object as a file: read by ranges, or written in parts."""

from __future__ import annotations

from typing import Any

from fsspec.spec import AbstractBufferedFile


class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object as a file: read by ranges, or written in parts and there only when it is closed."""

    def __init__(self, fs: Any, path: str, *given: Any, **named: Any) -> None:
        self._writer: Any = None
        super().__init__(fs, path, *given, **named)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))

    def _initiate_upload(self) -> None:
        self._writer = self.fs.writer(self.path)

    def _upload_chunk(self, final: bool = False) -> bool:
        with self.fs._telling("writing", self.path):
            self._writer.write(self.buffer.getvalue())
            if final:
                self._writer.close()
        return True

    def discard(self) -> None:
        """Leave what was written: without its end it never appears."""
        self._writer = None
