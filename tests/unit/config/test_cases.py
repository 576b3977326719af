"""Case files: every mistake with its place, nulls as values, and what a message is in bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.config import InvalidDefinition, PipelineConfig, load
from penstock.config.cases import AdvanceCase, CaseFile, MessageCase, case_file_of, load_cases

ONE_TOPIC = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL, amount DOUBLE"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/out}]
checkpoint: checkpoints/orders
"""
TWO_TOPICS = ONE_TOPIC.replace("topics: [orders]", "topics: [orders, returns]")
PATTERN = ONE_TOPIC.replace("topics: [orders]", 'pattern: "orders-.*"')


def pipeline(folder: Path, text: str = ONE_TOPIC) -> PipelineConfig:
    (folder / "orders.yaml").write_text(text)
    return load(folder / "orders.yaml")


def read(folder: Path, text: str, of: str = ONE_TOPIC) -> CaseFile:
    file = folder / "orders.test.yaml"
    file.write_text(text)
    return load_cases(file, pipeline(folder, of))


def problems(folder: Path, text: str, of: str = ONE_TOPIC) -> list[str]:
    with pytest.raises(InvalidDefinition) as raised:
        read(folder, text, of)
    return str(raised.value).replace(f"{folder}/", "").splitlines()


def test_case_file_has_the_name_of_the_pipeline_file() -> None:
    assert case_file_of(Path("shop/orders.yaml")) == Path("shop/orders.test.yaml")


def test_messages_of_every_kind_become_their_bytes(tmp_path: Path) -> None:
    text = """\
cases:
  - name: kinds
    messages:
      - {value: plain text, key: k, headers: {trace: abc, empty: null}}
      - {value: {order_id: 1, note: null, amount: 2.5}}
      - {value: [1, 2]}
      - {value_hex: "00 ff", key_hex: "0a"}
      - {value: null, topic: orders, partition: 3, offset: 7, time: 2026-01-31T08:00:00+02:00}
"""
    messages = read(tmp_path, text).cases[0].messages
    assert [m.value_bytes() for m in messages] == [
        b"plain text",
        b'{"order_id": 1, "note": null, "amount": 2.5}',
        b"[1, 2]",
        b"\x00\xff",
        None,
    ]
    assert [m.key_bytes() for m in messages] == [b"k", None, None, b"\n", None]
    assert messages[0].headers == {"trace": "abc", "empty": None}
    assert (messages[4].topic, messages[4].partition, messages[4].offset) == ("orders", 3, 7)
    assert messages[4].time == datetime(2026, 1, 31, 6, tzinfo=UTC)


def test_batches_have_messages_and_the_passing_of_time(tmp_path: Path) -> None:
    text = """\
cases:
  - name: time passes
    batches:
      - [{value: a}, {value: b}]
      - advance: 10 minutes
      - - value: c
"""
    first, passing, last = read(tmp_path, text).cases[0].all_batches
    assert passing == AdvanceCase(advance=timedelta(minutes=10))
    assert isinstance(first, tuple) and isinstance(last, tuple)
    assert [m.value for m in (*first, *last)] == ["a", "b", "c"]
    assert all(isinstance(m, MessageCase) for m in first)


def test_wrong_keys_types_and_values_are_all_told_with_their_places(tmp_path: Path) -> None:
    text = """\
cases:
  - name: bad
    mesages: []
    ordered: maybe
    messages:
      - {value: a, partition: -1}
      - {value_hex: "0g"}
      - {value: a, time: yesterday}
      - {value: a, time: 2026-01-31T08:00:00}
      - {valu: a}
    batches:
      - {advanse: 1 minute}
      - {advance: 1 fortnight}
    expect: {sinks: {out: [5]}}
    name: again
  - {messages: []}
tables: {customers: {shcema: "id BIGINT", rows: []}}
"""
    assert problems(tmp_path, text) == [
        'orders.test.yaml:3:5 cases[0].mesages: unknown key "mesages"',
        "  known keys: name, tables, messages, batches, expect, ordered, exact",
        '  did you mean "messages"?',
        'orders.test.yaml:4:14 cases[0].ordered: expected true or false, got "maybe"',
        "orders.test.yaml:6:31 cases[0].messages[0].partition: must be at least 0, got -1",
        "orders.test.yaml:7:21 cases[0].messages[1].value_hex: not hex: write two digits (0-9, a-f) per byte; "
        "spaces between bytes are allowed",
        '  given: "0g"',
        "orders.test.yaml:8:26 cases[0].messages[2].time: not a time",
        '  given: "yesterday"',
        "  write it as 2026-01-31T08:00:00Z",
        "orders.test.yaml:9:26 cases[0].messages[3].time: the time has no zone",
        '  given: "2026-01-31T08:00:00"',
        "  add one: 2026-01-31T08:00:00Z, or an offset such as +02:00",
        'orders.test.yaml:10:10 cases[0].messages[4].valu: unknown key "valu"',
        '  did you mean "value"?',
        'orders.test.yaml:12:10 cases[0].batches[0].advanse: unknown key "advanse"',
        '  did you mean "advance"?',
        'orders.test.yaml:13:19 cases[0].batches[1].advance: not a duration: "fortnight" is not a unit: write ms, '
        "seconds, minutes, hours or days",
        '  given: "1 fortnight"',
        "orders.test.yaml:14:28 cases[0].expect.sinks.out[0]: expected a mapping, got 5",
        'orders.test.yaml:15:5 cases[0].name: duplicate key "name"; first at line 2',
        "orders.test.yaml:16:5 cases[1].name: this key is required",
        'orders.test.yaml:17:22 tables.customers.shcema: unknown key "shcema"',
        '  did you mean "schema"?',
    ]


def test_what_the_pipeline_does_not_have_is_told_with_what_it_has(tmp_path: Path) -> None:
    text = """\
cases:
  - name: names
    tables: {customers: []}
    messages: [{value: a, topic: order}, {key: k}, {value: a, value_hex: "00"}]
    expect: {sinks: {outt: []}, quarantine: [{cod: X}]}
  - name: names
    messages: []
    batches: []
"""
    assert problems(tmp_path, text) == [
        'orders.test.yaml:3:14 cases[0].tables.customers: the pipeline has no table "customers"',
        "  tables: none",
        'orders.test.yaml:4:34 cases[0].messages[0].topic: the pipeline does not read "order"',
        "  topics: orders",
        '  did you mean "orders"?',
        "orders.test.yaml:4:42 cases[0].messages[1]: one of value and value_hex is needed",
        "  for a record without a value, write value: null",
        "orders.test.yaml:4:63 cases[0].messages[2].value_hex: only one of value and value_hex can be given",
        'orders.test.yaml:5:22 cases[0].expect.sinks.outt: the pipeline has no sink "outt"',
        "  sinks: out",
        '  did you mean "out"?',
        'orders.test.yaml:5:47 cases[0].expect.quarantine[0].cod: the quarantine has no column "cod"',
        "  columns: code, message, stage, topic, partition, offset, key, value, headers, timestamp",
        '  did you mean "code"?',
        'orders.test.yaml:6:11 cases[1].name: duplicate case name "names"; cases are identified by name',
        "orders.test.yaml:8:5 cases[1].batches: only one of messages and batches can be given",
    ]


@pytest.mark.parametrize(("of", "said"), [(TWO_TOPICS, "reads several topics"), (PATTERN, "reads topics by pattern")])
def test_message_without_a_topic_where_there_are_several_is_refused(tmp_path: Path, of: str, said: str) -> None:
    assert said in problems(tmp_path, "cases: [{name: a, messages: [{value: x}]}]", of)[0]
    named = read(tmp_path, "cases: [{name: a, messages: [{value: x, topic: returns}]}]", TWO_TOPICS)
    assert named.cases[0].messages[0].topic == "returns"


def test_text_that_yaml_takes_for_a_boolean_is_refused(tmp_path: Path) -> None:
    told = problems(tmp_path, "cases: [{name: a, messages: [{value: {country: NO, on: true}}]}]")
    assert told == [
        "orders.test.yaml:1:48 cases[0].messages[0].value.country: YAML 1.1 reads NO as true or false",
        '  quote it: "NO"',
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "orders.test.yaml:1:1 the file is empty"),
        ("cases: []", "orders.test.yaml:1:8 cases: needs at least one entry"),
        ("cases:", "orders.test.yaml:1:7 cases: the value is missing"),
        ("cases: [{name: }]", "orders.test.yaml:1:16 cases[0].name: the value is missing"),
        ("cases: [{name: a, ", "orders.test.yaml:2:1 not valid YAML"),
    ],
)
def test_file_without_cases_is_told_where_they_are_missing(tmp_path: Path, text: str, said: str) -> None:
    assert problems(tmp_path, text)[0].startswith(said)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match="no such file"):
        load_cases(tmp_path / "none.test.yaml", pipeline(tmp_path))
