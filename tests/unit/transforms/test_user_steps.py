from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from penstock.config.arrow_types import parse_columns
from penstock.contracts import FrameTransform
from penstock.errors import DefinitionError, TerminalError, from_wire
from penstock.model import COORDINATES, COORDINATES_FIELD, Split
from penstock.transforms import MapArrow, PythonFrame, Stateful
from penstock.transforms.stateful import ProcessorAdapter
from penstock.transforms.user import find, load

Module = Callable[..., str]

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string()), COORDINATES_FIELD])


@pytest.fixture
def module(tmp_path: Path) -> Module:
    """Writes modules into the pipeline's folder, each with a time of its own, and gives the folder."""
    times = iter(range(1_000_000_000, 2_000_000_000))

    def write(text: str, name: str = "rules.py", folder: Path = tmp_path) -> str:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        time = next(times)
        os.utime(file, (time, time))
        return str(folder)

    return write


def rows(*numbers: int | None) -> pa.RecordBatch:
    time = datetime(2024, 1, 1, tzinfo=UTC)
    return pa.RecordBatch.from_pylist(
        [
            {"n": n, "text": f"t{n}", COORDINATES: {"topic": "t", "partition": 0, "offset": at, "timestamp": time}}
            for at, n in enumerate(numbers)
        ],
        schema=SCHEMA,
    )


def offsets(split: Split) -> list[int]:
    return [at["offset"] for at in split.good.column(COORDINATES).to_pylist()]


# Finding and importing


@pytest.mark.parametrize("look", [find, load])
def test_load_module_missing_says_what_and_where(look: Any, module: Module) -> None:
    folder = module("def clean(x): ...\n")
    with pytest.raises(DefinitionError) as caught:
        look(folder, "rulez.clean")
    assert caught.value.code == "STEP_NOT_FOUND"
    assert caught.value.context == {"looked for": "rulez.py or rulez/__init__.py", "in": folder}
    assert caught.value.hint == 'did you mean "rules.clean"?'


@pytest.mark.parametrize("look", [find, load])
def test_load_name_missing_names_the_nearest(look: Any, module: Module) -> None:
    folder = module("import re\nif True:\n    def clean(x): ...\nLIMIT = 3\n")
    with pytest.raises(DefinitionError) as caught:
        look(folder, "rules.claen")
    assert caught.value.code == "STEP_NOT_FOUND"
    assert caught.value.context["names in it"] == "LIMIT, clean, re"
    assert caught.value.hint == 'did you mean "rules.clean"?'


@pytest.mark.parametrize("dotted", ["clean", "rules.", "a b.clean", "../rules.clean"])
def test_load_text_that_is_no_dotted_name_refused(dotted: str, module: Module) -> None:
    with pytest.raises(DefinitionError, match="STEP_NOT_FOUND"):
        load(module("def clean(x): ...\n"), dotted)


def test_find_never_runs_the_module(module: Module) -> None:
    find(module("raise SystemExit\ndef clean(x): ...\n"), "rules.clean")


@pytest.mark.parametrize("text", ["from os.path import *\n", "def __getattr__(name): return print\n"])
def test_find_name_that_only_running_tells_passes(text: str, module: Module) -> None:
    find(module(text), "rules.join")


@pytest.mark.parametrize(
    ("text", "raised", "place"),
    [
        ("x = 1\nimport no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'", "rules.py:2"),
        ("def clean(x):\n    return 1 +\n", "SyntaxError: invalid syntax (rules.py, line 2)", "rules.py:2"),
        ("import more\n", "ZeroDivisionError: division by zero", "more.py:2"),
    ],
)
def test_load_module_that_raises_told_with_its_line(text: str, raised: str, place: str, module: Module) -> None:
    module("x = 0\n1 / x\n", "more.py")
    with pytest.raises(DefinitionError) as caught:
        load(module(text), "rules.clean")
    assert caught.value.code == "STEP_NOT_IMPORTABLE"
    assert caught.value.context == {"raised": raised, "at": place}


def test_load_name_that_is_no_function_refused(module: Module) -> None:
    with pytest.raises(DefinitionError, match="STEP_NOT_CALLABLE"):
        load(module("clean = 3\n"), "rules.clean")


def test_load_two_folders_with_modules_of_one_name_keeps_them_apart(module: Module, tmp_path: Path) -> None:
    text = "import more\ndef clean(): return more.WHO\n"
    first = module(text, folder=tmp_path / "a")
    module("WHO = 'a'\n", "more.py", tmp_path / "a")
    second = module(text, folder=tmp_path / "b")
    module("WHO = 'b'\n", "more.py", tmp_path / "b")
    assert (load(first, "rules.clean")(), load(second, "rules.clean")()) == ("a", "b")
    assert "more" not in sys.modules


def test_load_twice_imports_once_until_a_file_is_edited(module: Module) -> None:
    module("WHO = 1\n", "more.py")
    folder = module("import more\ndef clean(): return more.WHO\n")
    first = load(folder, "rules.clean")
    assert load(folder, "rules.clean") is first
    module("WHO = 2\n", "more.py")
    assert load(folder, "rules.clean")() == 2
    module("def clean(): return 3\n")
    assert load(folder, "rules.clean")() == 3


@pytest.mark.parametrize("init", ["", None])
def test_load_from_a_package_with_imports_of_its_own_works(init: str | None, module: Module) -> None:
    if init is not None:
        module(init, "shop/__init__.py")
    module("RATE = 2\n", "shop/rates.py")
    folder = module("from .rates import RATE\nfrom shop import rates\ndef twice(x): return x * RATE\n", "shop/rules.py")
    assert load(folder, "shop.rules.twice")(4) == 8
    assert not [name for name in sys.modules if name.partition(".")[0] == "shop"]


def test_load_import_inside_a_function_finds_the_folder(module: Module) -> None:
    module("VALUE = 7\n", "only_here_later.py")
    folder = module("def clean():\n    import only_here_later\n    return only_here_later.VALUE\n")
    assert load(folder, "rules.clean")() == 7


# Record batches


def test_map_arrow_leaving_coordinates_out_gets_them_back(module: Module) -> None:
    folder = module(
        "import pyarrow.compute as pc, pyarrow as pa\n"
        "def double(rows): return pa.table({'m': pc.multiply(rows['n'], 2)})\n"
    )
    step = MapArrow(folder, "rules.double")
    assert step.output(SCHEMA) == pa.schema([pa.field("m", pa.int64()), COORDINATES_FIELD])
    split = step.apply(rows(1, 2, 3))
    assert split.good.column("m").to_pylist() == [2, 4, 6]
    assert offsets(split) == [0, 1, 2]


def test_map_arrow_other_rows_without_coordinates_stops(module: Module) -> None:
    folder = module("def some(rows): return rows.select(['n']).slice(0, rows.num_rows // 2)\n")
    with pytest.raises(TerminalError) as caught:
        MapArrow(folder, "rules.some").apply(rows(1, 2, 3))
    assert caught.value.code == "STEP_LOST_COORDINATES"
    assert caught.value.context == {"rows in": "3", "rows out": "1"}


def test_map_arrow_other_rows_with_coordinates_go_on(module: Module) -> None:
    folder = module(
        "import pyarrow as pa\n"
        "def twice(rows): return pa.concat_tables([pa.table(rows).select(['_penstock', 'n'])] * 2)\n"
    )
    split = MapArrow(folder, "rules.twice").apply(rows(1, 2))
    assert split.good.schema.names == ["n", COORDINATES]
    assert offsets(split) == [0, 1, 0, 1]


def test_map_arrow_types_of_other_libraries_become_those_that_are_carried(module: Module) -> None:
    folder = module(
        "import polars as pl\n"
        "def upper(rows):\n"
        "    return pl.from_arrow(rows).select(pl.col('text').str.to_uppercase(), '_penstock').to_arrow()\n"
    )
    step = MapArrow(folder, "rules.upper")
    assert step.output(SCHEMA).field("text").type == pa.string()
    assert step.apply(rows(1)).good.column("text").to_pylist() == ["T1"]


def test_map_arrow_failing_on_no_rows_needs_a_schema(module: Module) -> None:
    folder = module("def first(rows):\n    return rows['n'][0]\n")
    with pytest.raises(DefinitionError) as caught:
        MapArrow(folder, "rules.first").output(SCHEMA)
    assert caught.value.code == "STEP_NEEDS_SCHEMA"
    assert caught.value.context == {"raised": "IndexError: index out of bounds", "at": "rules.py:2"}


def test_map_arrow_with_a_schema_is_not_called_for_no_rows(module: Module) -> None:
    folder = module("def take(rows):\n    assert rows.num_rows\n    return rows.select(['n'])\n")
    step = MapArrow(folder, "rules.take", schema=parse_columns("n INT"))
    assert step.output(SCHEMA).names == ["n", COORDINATES]
    assert step.apply(rows()).good.schema == pa.schema([pa.field("n", pa.int32()), COORDINATES_FIELD])
    assert step.apply(rows(1)).good.column("n").type == pa.int32()


@pytest.mark.parametrize(
    ("declared", "body", "why"),
    [
        ("n BIGINT, m BIGINT", "rows.select(['n'])", "other columns"),
        ("n BIGINT", "rows.select(['n', 'text'])", "other columns"),
        ("text ARRAY<INT>", "rows.select(['text'])", "other columns"),
        ("n TINYINT", "rows.select(['n'])", "other columns"),
        ("n BIGINT NOT NULL", "rows.select(['n'])", "NOT NULL"),
    ],
)
def test_map_arrow_other_columns_than_declared_stops(declared: str, body: str, why: str, module: Module) -> None:
    step = MapArrow(module(f"def f(rows): return {body}\n"), "rules.f", schema=parse_columns(declared))
    with pytest.raises(TerminalError, match=why) as caught:
        step.apply(rows(1000, None))
    assert caught.value.code == "STEP_WRONG_COLUMNS"
    assert set(caught.value.context) == {"it should give", "it gave"}


def test_map_arrow_result_that_is_no_batch_stops(module: Module) -> None:
    step = MapArrow(module("def f(rows): return [1]\n"), "rules.f", schema=parse_columns("n BIGINT"))
    with pytest.raises(TerminalError, match="STEP_WRONG_RESULT"):
        step.apply(rows(1))


STRICT = """\
import pyarrow as pa

calls = []

def check(n):
    if n is not None and n < 0:
        raise ValueError(f"no such amount: {n}")
    return n

def strict(rows):
    calls.append(rows.num_rows)
    return pa.RecordBatch.from_arrays([pa.array([check(n) for n in rows["n"].to_pylist()], pa.int64())], ["n"])
"""


def test_map_arrow_raising_stops_with_type_message_and_line(module: Module) -> None:
    with pytest.raises(TerminalError) as caught:
        MapArrow(module(STRICT), "rules.strict").apply(rows(1, -2))
    assert caught.value.code == "STEP_FAILED"
    assert caught.value.context == {"raised": "ValueError: no such amount: -2", "at": "rules.py:7"}
    assert "rules.strict" in caught.value.summary


def test_map_arrow_quarantine_refuses_only_the_rows_that_raise(module: Module) -> None:
    step = MapArrow(module(STRICT), "rules.strict", on_error="quarantine")
    numbers = [-i if i in (3, 4, 90, 99) else i for i in range(100)]
    split = step.apply(rows(*numbers))
    assert offsets(split) == [i for i in range(100) if i not in (3, 4, 90, 99)]
    assert split.good.column("n").to_pylist() == [n for n in numbers if n >= 0]
    assert [one.record.start for one in split.refused] == [3, 4, 90, 99]
    assert split.refused[0].code == "STEP_FAILED"
    assert split.refused[0].message == "ValueError: no such amount: -3 (rules.py:7)"


@pytest.mark.parametrize(
    ("is_bad", "most_calls"),
    [(lambda i: True, 2100), (lambda i: i % 2, 4000), (lambda i: i % 100 == 0, 500), (lambda i: i == 1500, 50)],
)
def test_map_arrow_quarantine_costs_linear_in_rows(
    is_bad: Callable[[int], bool], most_calls: int, module: Module
) -> None:
    folder = module(STRICT)
    step = MapArrow(folder, "rules.strict", on_error="quarantine", schema=parse_columns("n BIGINT"))
    calls = load(folder, "rules.strict").__globals__["calls"]
    calls.clear()
    split = step.apply(rows(*(-i - 1 if is_bad(i) else i for i in range(2000))))
    assert len(split.refused) + split.good.num_rows == 2000
    assert sum(calls) < 5 * 2000
    assert len(calls) < most_calls


def test_map_arrow_quarantine_function_that_takes_few_rows_at_a_time_loses_none(module: Module) -> None:
    folder = module("def small(rows):\n    assert rows.num_rows < 3\n    return rows\n")
    split = MapArrow(folder, "rules.small", on_error="quarantine", schema=SCHEMA.remove(2)).apply(rows(*range(50)))
    assert not split.refused
    assert offsets(split) == list(range(50))


def test_map_arrow_quarantine_value_that_does_not_fit_refused_alone(module: Module) -> None:
    folder, declared = module("def f(rows): return rows.select(['n'])\n"), parse_columns("n TINYINT NOT NULL")
    step = MapArrow(folder, "rules.f", "quarantine", declared)
    split = step.apply(rows(1, 1000, None, 4))
    assert split.good.column("n").to_pylist() == [1, 4]
    assert [one.record.start for one in split.refused] == [1, 2]


def test_map_arrow_quarantine_lost_coordinates_still_stop(module: Module) -> None:
    folder = module("def some(rows): return rows.select(['n']).slice(1)\n")
    with pytest.raises(TerminalError, match="STEP_LOST_COORDINATES"):
        MapArrow(folder, "rules.some", on_error="quarantine").apply(rows(1, 2))


def test_map_arrow_sent_to_a_task_is_small_and_works(module: Module) -> None:
    step = MapArrow(module(STRICT), "rules.strict", on_error="quarantine")
    step.output(SCHEMA)
    sent = pickle.dumps(step)
    assert len(sent) < 2000
    assert len(pickle.loads(sent).apply(rows(1, -1)).refused) == 1


# Frames


class Frame:
    """Stands for Spark's: only its type is looked at."""


def test_python_frame_gives_what_the_function_gives(module: Module) -> None:
    step = PythonFrame(module("def same(frame): return frame\n"), "rules.same")
    frame = Frame()
    assert isinstance(step, FrameTransform)
    assert step.frame(frame) is frame
    assert step.no_arrow_form(SCHEMA) == "`python` is run by Spark"


@pytest.mark.parametrize(
    ("body", "code"), [("return None", "STEP_WRONG_RESULT"), ("return frame.nothing", "STEP_FAILED")]
)
def test_python_frame_wrong_function_stops(body: str, code: str, module: Module) -> None:
    with pytest.raises(TerminalError) as caught:
        PythonFrame(module(f"def f(frame):\n    {body}\n"), "rules.f").frame(Frame())
    assert caught.value.code == code
    if code == "STEP_FAILED":
        assert caught.value.context["at"] == "rules.py:2"


# State


def test_stateful_output_is_the_declared_columns_with_coordinates() -> None:
    step = Stateful("", "rules.Count", ["TEXT"], parse_columns("n BIGINT"))
    assert step.output(SCHEMA) == pa.schema([pa.field("n", pa.int64()), COORDINATES_FIELD])
    with pytest.raises(DefinitionError, match="COLUMN_UNKNOWN"):
        Stateful("", "rules.Count", ["user"], parse_columns("n BIGINT")).output(SCHEMA)


def test_stateful_ttl_without_processing_time_refused() -> None:
    with pytest.raises(DefinitionError, match="STATE_TTL_NEEDS_PROCESSING_TIME"):
        Stateful("", "rules.Count", ["n"], parse_columns("n BIGINT"), "event", timedelta(hours=1))


def described(step: Stateful) -> str:
    return f"{step.keeps}; {step.bound}"


def test_stateful_step_says_what_ends_its_state() -> None:
    columns = parse_columns("n BIGINT")
    kept = described(Stateful("", "rules.Count", ["a", "b"], columns, "event"))
    assert kept == (
        "what rules.Count keeps for each a, b; "
        "nothing but rules.Count itself ends it, by timers of event time or at once"
    )
    expiring = described(Stateful("", "rules.Count", ["a"], columns, "processing", timedelta(hours=1)))
    assert "a state goes 1 hour after it was last written" in expiring


def test_stateful_class_that_is_no_processor_refused(module: Module) -> None:
    step = Stateful(module("class Count: ...\n"), "rules.Count", ["n"], parse_columns("n BIGINT"))
    with pytest.raises(DefinitionError) as caught:
        step.frame(Frame())
    assert caught.value.code == "STEP_NOT_CALLABLE"
    assert caught.value.context == {"it lacks": "init, handleInputRows, close"}


COUNTS = """\
import pandas as pd


class Counts:
    def init(self, handle): ...
    def close(self): ...

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            assert frame.dtypes.astype(str).to_dict() == {"n": "float64", "when": "datetime64[ns]"}, frame.dtypes
            yield pd.DataFrame({"texts": [",".join(map(str, frame["n"]))], "key": [key[0]]})


class Rows(Counts):
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            yield GIVEN if GIVEN else {"key": row.n, "texts": type(row.when).__name__}


GIVEN = None
"""


def carrying(folder: str, cls: str, form: Any) -> ProcessorAdapter:
    made = ProcessorAdapter(
        step="stateful",
        folder=folder,
        cls=cls,
        columns=("n", "when"),
        schema=parse_columns("key BIGINT NOT NULL, texts STRING"),
        rows=form,
        tracked=True,
        timed=False,
        ttl=None,
    )
    made = pickle.loads(pickle.dumps(made))
    made.init(None)
    return made


def keyed(*places: tuple[int, int], n: int | None = 1) -> list[Row]:
    """Rows of one key at some partitions and offsets, as Spark hands them over."""
    time = datetime(2024, 1, 1, tzinfo=UTC)
    named = Row("column_0", "column_1", COORDINATES)
    return [named(n, time, {"topic": "t", "partition": p, "offset": o, "timestamp": time}) for p, o in places]


def test_carrying_rows_come_in_source_order_and_leave_with_the_newest_coordinates(module: Module) -> None:
    taken = [*keyed((1, 5), n=5), *keyed((0, 9), n=None), *keyed((0, 2), n=2)]
    [out] = carrying(module(COUNTS), "rules.Counts", "pandas").handleInputRows((7,), taken, None)
    place = out.asDict().pop(COORDINATES)
    assert out.asDict() == {"key": 7, "texts": "2.0,nan,5.0"}
    assert (place["partition"], place["offset"]) == (0, 9)


def test_carrying_python_rows_have_the_names_and_values_of_spark(module: Module) -> None:
    given = list(carrying(module(COUNTS), "rules.Rows", "python").handleInputRows((7,), keyed((0, 1), (0, 2)), None))
    assert [(out["key"], out["texts"], out[COORDINATES]["offset"]) for out in given] == [(1, "datetime", 2)] * 2


@pytest.mark.parametrize(
    ("cls", "given", "why"),
    [
        ("Rows", "{'key': 1}", "it gave other columns than it should"),
        ("Rows", "{'key': 1, 'texts': 'a', 'more': 2}", "it gave other columns than it should"),
        ("Rows", "{'key': 'a', 'texts': 'a'}", 'a str does not fit the column "key"'),
        ("Rows", "{'key': None, 'texts': 'a'}", 'NULL in the NOT NULL column "key"'),
        ("Rows", "'key'", "it has to give rows, not str"),
        ("Counts", "[{'key': 1}]", "it has to give pandas frames, not list"),
        ("Counts", "pd.DataFrame({'key': ['x'], 'texts': ['a']})", "the values do not fit the declared columns"),
        ("Counts", "pd.DataFrame({'key': [None], 'texts': ['a']})", "the values do not fit the declared columns"),
    ],
)
def test_carrying_wrong_rows_stop(cls: str, given: str, why: str, module: Module) -> None:
    text = COUNTS.replace("GIVEN = None", f"GIVEN = {given}")
    if cls == "Counts":
        text = text.replace("        for frame in rows:", "        yield GIVEN\n        for frame in ():")
    made = carrying(module(text), f"rules.{cls}", "python" if cls == "Rows" else "pandas")
    with pytest.raises(RuntimeError) as caught:
        list(made.handleInputRows((7,), keyed((0, 1)), None))
    error = from_wire(str(caught.value))
    assert error is not None
    assert (error.code, error.summary) == ("STEP_WRONG_COLUMNS", f"running stateful: {why}")
