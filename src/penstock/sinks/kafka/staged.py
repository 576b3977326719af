"""Finished records in Parquet files: staged in tasks, and sent by the driver when it commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.model import BatchToken, Manifest, Refusal, SlotAttempt
from penstock.sinks.failures import sink_failures
from penstock.sinks.files import ParquetFiles, TableFolder, staged_prefix
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.records import RecordMaker, pieces
from penstock.storage import Storage


class StagedRecords:
    """A folder of one sink's own. `schema` is `RECORD_SCHEMA`, or some of its columns."""

    def __init__(self, uri: str, storage: Storage, pipeline: str, sink: str, schema: pa.Schema) -> None:
        self._folder = TableFolder(uri, storage)
        self._pipeline = pipeline
        self._sink = sink
        self._schema = schema

    def stage(self, token: BatchToken, writer: SlotAttempt, maker: RecordMaker, topics: TopicCache) -> RecordFiles:
        """In a task: begin the files of one attempt of a slot."""
        files = ParquetFiles(self._folder, self._prefix(token), writer, self._schema)
        return RecordFiles(self._sink, writer, maker, topics, files, self._schema)

    def paths(self, manifests: Sequence[Manifest]) -> list[str]:
        """The whole paths of the files that these manifests name."""
        return [f"{self._folder.uri}/{path}" for path in _named(manifests)]

    def read(self, manifests: Sequence[Manifest]) -> Iterator[pa.RecordBatch]:
        """The records that these manifests name, in the order of the files and piece by piece."""
        with sink_failures(self._sink, "reading staged records"):
            for path in _named(manifests):
                dataset = self._folder.dataset([path], self._schema)
                yield from dataset.to_batches(batch_readahead=1, fragment_readahead=1)

    def remove(self, manifests: Sequence[Manifest]) -> None:
        """Remove the files that these manifests name."""
        for path in _named(manifests):
            self._folder.remove(path)

    def discard(self, token: BatchToken, keep: Sequence[Manifest] = ()) -> None:
        """Remove what was staged for a batch, apart from what some manifests name."""
        kept = set(_named(keep))
        for path in list(self._folder.data_files(self._prefix(token))):
            if path not in kept:
                self._folder.remove(path)

    def _prefix(self, token: BatchToken) -> str:
        return staged_prefix("records", self._pipeline, self._sink, token)


class RecordFiles:
    """Implements `contracts.Stage`: finished records in Parquet files, in their order."""

    def __init__(
        self,
        sink: str,
        writer: SlotAttempt,
        maker: RecordMaker,
        topics: TopicCache,
        files: ParquetFiles,
        schema: pa.Schema,
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._maker = maker
        self._topics = topics.for_stage()
        self._files = files
        self._columns = schema.names

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Stage the records of some rows; give back those that no topic takes."""
        refused: list[Refusal] = []
        for piece in pieces(rows):
            good, unfit = self._maker.screen(piece)
            records, out = self._topics.fit(good, self._maker.make(good), self._maker)
            refused += [*unfit, *out]
            if records.num_rows:
                with sink_failures(self._sink, "staging records"):
                    self._files.add("", records.select(self._columns))
        return refused

    def finish(self) -> Manifest:
        """Close the files and say what there is."""
        with sink_failures(self._sink, "staging records"):
            written = self._files.finish()
        rows = sum(file.footer.num_rows for file in written)
        size = sum(file.size_bytes for file in written)
        return Manifest(self._sink, self._writer, rows, size, tuple(file.path for file in written))

    def abort(self) -> None:
        """Remove the files."""
        self._files.abort()


def _named(manifests: Sequence[Manifest]) -> list[str]:
    return [str(path) for manifest in manifests for path in manifest.items]
