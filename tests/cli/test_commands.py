"""The commands that need no services: `init`, `schema`, `--version`, `--help`, shell completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.cli.command import command, penstock
from typer.testing import CliRunner

from penstock.cli.main import app


def commands(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Every command of the application itself, a group before those in it."""
    for name, found in group.commands.items():
        yield (*above, name)
        if hasattr(found, "commands"):
            yield from commands(found, *above, name)


COMMANDS = sorted(commands(typer.main.get_command(app)))

AWAY = ("localhost:9092", "127.0.0.1:9\n  options: {socket.timeout.ms: 500}")
"""Replaces the brokers by one that does not answer, and is not waited for."""


def test_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = penstock("--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"penstock {version('penstock')}\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_a_usage_and_a_sentence(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="penstock", env={"COLUMNS": "1000", "TERM": "dumb"})
    assert done.exit_code == 0
    usage, _, sentence = (line.strip() for line in done.stdout.strip().splitlines()[:3])
    assert usage.startswith(f"Usage: penstock {' '.join(words)} ")
    assert sentence.endswith(".")


@pytest.mark.parametrize("words", [("run",), ("checkpoint", "backup"), ("dev", "up")])
def test_help_names_flags_without_a_type(words: tuple[str, ...], tmp_path: Path) -> None:
    assert "bool" not in command(*words, "--help", folder=tmp_path).stdout


def test_help_without_a_command_lists_them_all(tmp_path: Path) -> None:
    printed = command("--help", folder=tmp_path).stdout
    assert {"validate", "run", "checkpoint", "quarantine", "dev"} <= {first for first, *_ in COMMANDS}
    assert all(f" {words[0]} " in printed for words in COMMANDS)


def test_unknown_command_is_refused_without_a_traceback(tmp_path: Path) -> None:
    done = penstock("valdiate", folder=tmp_path)
    assert done.returncode == 2
    assert "No such command 'valdiate'" in done.stderr
    assert "Traceback" not in done.stderr


def test_schema_prints_a_json_schema_that_knows_the_keys(tmp_path: Path) -> None:
    done = command("schema", folder=tmp_path)
    assert done.returncode == 0
    body = json.loads(done.stdout)
    assert {"name", "source", "decode", "sinks", "checkpoint", "trigger"} <= body["properties"].keys()


def test_init_writes_a_file_that_validates_and_the_schema_it_names(tmp_path: Path) -> None:
    done = command("init", "shop/orders.yaml", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "wrote shop/orders.yaml",
        "wrote shop/.penstock/pipeline.schema.json",
        "next: penstock validate shop/orders.yaml",
    ]
    first, *_ = (tmp_path / "shop/orders.yaml").read_text().splitlines()
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / "shop" / named).read_text())["properties"]["source"]
    checked = command("validate", "shop/orders.yaml", folder=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "shop/orders.yaml: pipeline orders is valid\n")


def test_init_file_there_already_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("mine\n")
    refused = command("init", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr == "FILE_EXISTS pipeline.yaml already exists\n  choose another file, or use --force\n"
    assert (tmp_path / "pipeline.yaml").read_text() == "mine\n"
    assert command("init", "--force", folder=tmp_path).returncode == 0
    assert (tmp_path / "pipeline.yaml").read_text() != "mine\n"


def test_init_where_nothing_can_be_written_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command("init", "file/orders.yaml", folder=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("FILE_UNUSABLE file: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["my orders.yaml", "2024.yaml", "Größe.yaml", "yes.yaml"])
def test_init_file_whose_name_no_pipeline_can_have_asks_for_another_name(tmp_path: Path, name: str) -> None:
    refused = command("init", name, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.startswith(f'NAME_UNUSABLE "{Path(name).stem}" cannot be the name of a pipeline')
    assert "--name NAME" in refused.stderr
    assert not (tmp_path / name).exists()
    assert command("init", name, "--name", "orders", folder=tmp_path).returncode == 0
    checked = command("validate", name, folder=tmp_path)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_the_shell(tmp_path: Path, shell: str) -> None:
    done = command("--show-completion", shell, folder=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_PENSTOCK_COMPLETE" in done.stdout


def test_completion_offers_the_commands(tmp_path: Path) -> None:
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock va", "COMP_CWORD": "1"}
    done = penstock(folder=tmp_path, **asked)
    assert done.stdout.split() == ["validate"]


def test_registry_that_is_away_at_the_start_is_missing(write: Callable[..., Path], tmp_path: Path) -> None:
    file = write()
    text = file.read_text()
    start, end = text.index("decode:"), text.index("quarantine:")
    file.write_text(
        f'{text[:start]}decode: {{format: avro, registry: {{url: "http://127.0.0.1:9", retries: 1}}}}\n{text[end:]}'
    )
    assert command("validate", "orders.yaml", folder=tmp_path).returncode == 0
    for word in ("plan", "run"):
        done = command(word, "orders.yaml", folder=tmp_path)
        assert done.returncode == 3
        assert done.stderr.startswith("REGISTRY_UNREACHABLE ")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("started", [command, penstock])
def test_broker_away_is_told_before_spark_starts(
    write: Callable[..., Path], tmp_path: Path, started: Callable[..., Any]
) -> None:
    write(AWAY)
    done = started("plan" if started is command else "run", "orders.yaml", folder=tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "BROKER_UNREACHABLE listing topics: no answer from the brokers",
        "  brokers: 127.0.0.1:9",
        "  client: _TRANSPORT: Failed to get metadata: Local: Broker transport failure",
        "  is the broker running, and are source.brokers right?  try: penstock dev status",
    ]


def test_plan_broker_away_as_json_still_tells_the_rest(write: Callable[..., Path], tmp_path: Path) -> None:
    write(AWAY)
    done = command("plan", "--json", "orders.yaml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    told = json.loads(done.stdout)
    assert [p["code"] for p in told["problems"]] == ["BROKER_UNREACHABLE"]
    assert (told["lane"], told["partitions"], told["start"]) == ("direct", [], None)
