"""`penstock validate`: what a person and a program see, and what it does not do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cli.command import command, penstock

Write = Callable[..., Path]

BAD = (("topics: [orders]", "topcis: [orders]"), ("amount DOUBLE", "amount DUBLE"), ("type: delta", "type: dleta"))
BAD_TEXT = """\
orders.yaml:5:3 source.topcis: unknown key "topcis"
  did you mean "topics"?
orders.yaml:8:45 decode.schema: DUBLE is not a type that Penstock supports
  did you mean "DOUBLE"?
orders.yaml:13:11 sinks[0].type: "dleta" is not one of delta, iceberg, kafka, postgres, parquet, jsonl
  did you mean "delta"?
"""


def test_validate_good_file_says_so(write: Write, tmp_path: Path) -> None:
    write()
    done = penstock("validate", "orders.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "orders.yaml: pipeline orders is valid\n", "")


def test_validate_good_file_as_json(write: Write, tmp_path: Path) -> None:
    write()
    done = command("validate", "orders.yaml", "--json", folder=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"valid": True, "name": "orders", "problems": []}


def test_validate_several_errors_shows_each_with_its_place(write: Write, tmp_path: Path) -> None:
    write(*BAD)
    done = command("validate", "orders.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == BAD_TEXT


def test_validate_several_errors_as_json(write: Write, tmp_path: Path) -> None:
    write(*BAD)
    done = command("validate", "orders.yaml", "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)
    assert told["valid"] is False
    places = [(p["file"], p["line"], p["column"], p["path"]) for p in told["problems"]]
    assert places == [
        ("orders.yaml", 5, 3, "source.topcis"),
        ("orders.yaml", 8, 45, "decode.schema"),
        ("orders.yaml", 13, 11, "sinks[0].type"),
    ]
    assert told["problems"][0]["message"] == 'unknown key "topcis"'
    assert told["problems"][0]["hint"] == 'did you mean "topics"?'


def test_validate_no_such_file_names_the_way_to_one(tmp_path: Path) -> None:
    done = command("validate", "nothing.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "nothing.yaml:1:1 no such file\n  to start a new pipeline: penstock init\n"


def test_validate_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = command("validate", "folder", folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, "folder:1:1 reading the file: Is a directory\n")


def test_validate_without_a_file_says_what_is_missing(tmp_path: Path) -> None:
    done = command("validate", folder=tmp_path)
    assert done.returncode == 2
    assert "Missing argument 'FILE'" in done.stderr
    assert "Traceback" not in done.stderr


def test_validate_debug_shows_a_traceback_above_the_error(write: Write, tmp_path: Path) -> None:
    write(*BAD)
    done = command("--debug", "validate", "orders.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.endswith(BAD_TEXT)


def test_validate_needs_neither_spark_nor_arrow_nor_a_kafka_client(write: Write) -> None:
    probe = (
        "import sys; from penstock.cli.main import main\n"
        "try: main()\n"
        "finally: print([m for m in ('pyspark', 'py4j', 'pyarrow', 'confluent_kafka', 'deltalake', 'pandas')"
        " if m in sys.modules], file=sys.stderr)"
    )
    words = [sys.executable, "-c", probe, "validate", str(write())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == "[]\n"
