"""Mutated messages in every format of a registry: each becomes a row or a bad record, and nothing else happens."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import yaml
from tests.fuzz_formats import FORMATS, Format
from tests.mutations import mutated
from tests.orders import drain
from tests.tables import read_table

from penstock.assembly.build import build
from penstock.config import load
from penstock.contracts import Decoder
from penstock.model import COORDINATES, RAW_SCHEMA, Split

pytestmark = pytest.mark.services

BATCH = 5_000
MIB = 1024 * 1024
# Where most are bad, the careful readers see all of them; where few are, the fast ones have to find them.
MANY, FEW = 0.9, 0.02


class Fuzz:
    """Batches of messages of a format, most of them mutated; the same ones in every run."""

    def __init__(self, form: Format, seed: int) -> None:
        self._form = form
        self._chance = random.Random(seed)
        self._good = list(form.rows)
        self.read = self.refused = self.mutated = 0
        self.codes: Counter[str] = Counter()

    def messages(self, count: int, share: float = MANY) -> list[bytes]:
        """That many messages, about a `share` of them mutated."""
        pick, found = self._chance, []
        for _ in range(count):
            change = pick.random() < share
            found.append(mutated(pick, self._good, self._form.extras) if change else pick.choice(self._good))
        return found

    def check(self, messages: list[bytes], split: Split) -> None:
        good = split.good.column(COORDINATES).field("offset").to_pylist()
        bad = split.bad.column("offset").to_pylist()
        assert sorted([*good, *bad]) == list(range(len(messages)))
        assert split.bad.column("value").to_pylist() == [messages[at] for at in bad]
        assert all(split.bad.column("message").to_pylist())
        assert not [at for at in bad if messages[at] in self._form.rows]
        unchanged = [number for number, at in enumerate(good) if messages[at] in self._form.rows]
        rows = split.good.take(pa.array(unchanged, pa.int64())).drop_columns([COORDINATES]).to_pylist()
        assert rows == [self._form.rows[messages[good[number]]] for number in unchanged]
        found = zip(*(split.good.column(name).to_pylist() for name in ("order_id", "customer")), strict=True)
        assert list(found) == [self._form.read(messages[at]) for at in good]
        self.read += len(good)
        self.refused += len(bad)
        self.mutated += len(messages) - len(unchanged)
        self.codes.update(split.bad.column("code").to_pylist())


@pytest.fixture(params=sorted(FORMATS))
def form(request: pytest.FixtureRequest, registry: Any) -> tuple[str, Format]:
    topic = registry.subject(f"fuzz-{request.param}").removesuffix("-value")
    return topic, FORMATS[request.param](registry.url, topic)


def decoder_of(topic: str, form: Format, folder: Path) -> Decoder:
    """The decoder that a pipeline file gives; no broker is asked for it."""
    body = {
        "name": "fuzz",
        "source": {"type": "kafka", "brokers": "127.0.0.1:1", "topics": [topic]},
        "decode": form.decode,
        "quarantine": {"table": "lake/quarantine"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake/out"}],
        "checkpoint": "checkpoint",
    }
    file = folder / "fuzz.yaml"
    file.write_text(yaml.safe_dump(body))
    return build(load(file)).flows[0].decoder


def raw_batch(messages: list[bytes]) -> pa.RecordBatch:
    count = len(messages)
    columns = {
        "value": pa.array(messages, pa.binary()),
        "topic": pa.repeat(pa.scalar("t"), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in RAW_SCHEMA], schema=RAW_SCHEMA
    )


class Memory:
    """How far this process grew beyond what it had, at its peak."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = psutil.Process().memory_info().rss

    @property
    def growth(self) -> int:
        [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024 - self._before


@pytest.mark.parametrize("count", [2_500, pytest.param(100_000, marks=pytest.mark.long)])
def test_mutated_messages_each_end_as_a_row_or_a_bad_record(
    form: tuple[str, Format], tmp_path: Path, count: int
) -> None:
    topic, format_ = form
    decoder = decoder_of(topic, format_, tmp_path)
    fuzz, memory, seconds = Fuzz(format_, seed=count), Memory(), 0.0
    shares = cycle((MANY, FEW, MANY))
    while fuzz.mutated < count:
        messages = fuzz.messages(min(BATCH, count // 2), next(shares))
        raw = raw_batch(messages)
        began = time.perf_counter()
        split = decoder.decode(raw)
        seconds += time.perf_counter() - began
        fuzz.check(messages, split)
    growth = memory.growth // MIB
    print(f"{format_.decode['format']}: {fuzz.mutated} mutated of {fuzz.read + fuzz.refused} messages")
    print(f"in {seconds:.1f} s {fuzz.read} rows, {fuzz.refused} bad; grew by {growth} MiB; {dict(fuzz.codes)}")
    assert min(fuzz.read, fuzz.refused) > count // 10
    assert len(fuzz.codes) > 5
    assert growth < 500


@pytest.mark.parametrize("session", ["local", pytest.param("spark", marks=pytest.mark.long)], indirect=True)
def test_mutated_messages_through_a_pipeline_add_up_in_tables_and_quarantine(
    session: Any, topics: Any, registry: Any, pipeline_file: Any
) -> None:
    names = {name: topics.create(1, prefix=f"fuzz-{name}") for name in FORMATS}
    sent: Counter[bytes] = Counter()
    expected: Counter[str] = Counter()
    decode: dict[str, Any] = {}
    for name, topic in names.items():
        form = FORMATS[name](registry.url, topic)
        messages = Fuzz(form, seed=1).messages(700)
        split = decoder_of(topic, form, Path(pipeline_file(topic, name=name)).parent).decode(raw_batch(messages))
        expected[name] = split.good.num_rows
        sent.update(split.bad.column("value").to_pylist())
        topics.send(topic, messages)
        decode[topic] = form.decode
    file = pipeline_file(
        next(iter(names.values())),
        name=f"fuzz-{names['avro']}",
        source={"topics": list(names.values())},
        decode={"by_topic": decode},
        routes=[{"topics": [topic], "sinks": [name]} for name, topic in names.items()],
        sinks=[{"name": name, "type": "delta", "path": f"lake/{name}"} for name in names],
    )
    summary = drain(file, session)
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (2_100, expected.total(), sent.total())
    assert {name: read_table(file.parent / "lake" / name).num_rows for name in names} == expected
    assert Counter(read_table(file.parent / "lake/quarantine").column("value").to_pylist()) == sent
    assert session.sparkContext.parallelize(range(3), 2).map(str).collect() == ["0", "1", "2"], "tasks still run"
