"""A checkpoint folder as Spark 4.1 writes one: the texts are those of a real run, with its checksums beside."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

QUERY = "278b7560-3ceb-44fb-a542-fa1b106c23e2"
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.shuffle.partitions": "2",
}


def text(body: object) -> str:
    return json.dumps(body, separators=(",", ":"))


def put(file: Path, body: str | bytes) -> None:
    """A file and its checksum, as Hadoop's local file system leaves them."""
    raw = body.encode() if isinstance(body, str) else body
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw)
    sums = b"".join(zlib.crc32(raw[at : at + 512]).to_bytes(4, "big") for at in range(0, len(raw), 512))
    (file.parent / f".{file.name}.crc").write_bytes(b"crc\0\0\0\2\0" + sums)


def lose(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.unlink()
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def write_checkpoint(
    root: Path,
    ends: Sequence[Mapping[int, int]],
    *,
    committed: int | None = None,
    start: Mapping[int, int] | None = None,
    topic: str = "orders",
    watermark: int = 0,
) -> Path:
    """Batches 0, 1, ... with these ends; all committed, or up to `committed`."""
    put(root / "metadata", text({"id": QUERY}))
    first = start if start is not None else dict.fromkeys(ends[0], 0)
    put(root / "sources/0/0", b"\0v1\n" + text({topic: {str(p): o for p, o in first.items()}}).encode())
    for batch, where in enumerate(ends):
        head = {"batchWatermarkMs": watermark, "batchTimestampMs": 1794812992372, "conf": _CONF}
        offsets = text({topic: {str(p): o for p, o in where.items()}})
        put(root / f"offsets/{batch}", f"v1\n{text(head)}\n{offsets}")
    last = len(ends) - 1 if committed is None else committed
    for batch in range(last + 1):
        put(root / f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
    return root


def write_state(root: Path, versions: int, *, partitions: int = 2, snapshot: int | None = None) -> None:
    """The state of one step: a change for each version, and a snapshot of RocksDB if wanted."""
    (root / ".penstock.state").write_text('[{"dedupe": {"keys": ["order_id"], "time": "event_time"}}]')
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}]
    note = {"operatorInfo": {"operatorId": 0, "operatorName": "dedupeWithinWatermark"}, "stateStoreInfo": stores}
    put(root / "state/0/_metadata/metadata", f"v1\n{text(note)}")
    for partition in range(partitions):
        store = root / f"state/0/{partition}"
        for version in range(1, versions + 1):
            put(store / f"{version}.changelog", b"\0\0changes")
        if snapshot is not None:
            sst = f"000008-{partition}.sst"
            put(store / "SSTs" / sst, b"sst")
            files = {"sstFiles": [{"localFileName": "000008.sst", "dfsSstFileName": sst, "sizeBytes": 3}], "numKeys": 1}
            with zipfile.ZipFile(store / f"{snapshot}.zip", "w") as packed:
                packed.writestr("metadata", f"v1\n{text(files)}")
