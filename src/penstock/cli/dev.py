"""`penstock dev`: a local Kafka, up, down, and how it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.spark.cache import cache_home

# Imported where it is used: every command loads this module, few need a Kafka client.
if TYPE_CHECKING:
    from penstock.devstack import StackStatus, Stopped

DEFAULT_PORT = 9092

app = typer.Typer(help="A local Kafka, without Docker.", no_args_is_help=True)


Dir = Annotated[
    Path | None, typer.Option("--dir", help="Where its data, logs and process file are.", show_default=False)
]


def _folder(given: Path | None) -> Path:
    return (given or cache_home() / "dev").absolute()


@app.command()
def up(
    brokers: Annotated[str | None, typer.Option(help="1 or 3; 1 without it.", metavar="1|3")] = None,
    port: Annotated[
        int | None,
        typer.Option(help=f"The first broker's port; {DEFAULT_PORT} without it.", min=1024, max=65533),
    ] = None,
    folder: Dir = None,
) -> None:
    """Start a local Kafka and wait until a client can produce."""
    from rich.console import Console

    from penstock.devstack import DevStack, read_status
    from penstock.spark.jars import broker_classpath
    from penstock.spark.java import find_java

    if brokers not in (None, "1", "3"):
        raise typer.BadParameter(f"{brokers} is neither 1 nor 3", param_hint="--brokers")
    where = _folder(folder)
    before = read_status(where)
    console = Console(stderr=True)
    if before.state == "down":
        port = port or DEFAULT_PORT
        if any(node.pid for node in before.nodes):
            console.print(f"The brokers in {where} ended without `dev down`; starting again on their data.")
    stack = DevStack(
        where,
        java=find_java().executable,
        classpath=broker_classpath(),
        brokers=int(brokers) if brokers else None,
        port=port,
    )
    started = time.monotonic()
    with console.status("Starting Kafka ..."):
        stack.start()
    if before.state == "up":
        typer.echo(f"Kafka is already up: {stack.bootstrap}")
    else:
        typer.echo(f"Kafka is up after {time.monotonic() - started:.1f} s: {stack.bootstrap}")
        typer.echo("Take it down with: penstock dev down" + (f" --dir {folder}" if folder else ""))


@app.command()
def down(
    folder: Dir = None,
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Leave topics and records for the next up.")] = False,
) -> None:
    """End the local Kafka and remove its data."""
    from rich.console import Console

    from penstock.devstack import stop_stack

    where = _folder(folder)
    with Console(stderr=True).status("Ending Kafka ..."):
        stopped = stop_stack(where, keep_data=keep_data)
    typer.echo(_told(stopped, where))


@app.command()
def status(
    folder: Dir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say whether the local Kafka is up, and where."""
    from rich.console import Console
    from rich.table import Table

    from penstock.devstack import read_status

    found = read_status(_folder(folder))
    if as_json:
        typer.echo(json.dumps(_as_json(found)))
        return
    typer.echo(f"Kafka is {found.state}" + (f": {found.brokers}" if found.state != "down" else ""))
    if not found.nodes:
        return
    table = Table("broker", "port", "process", "log")
    for node in found.nodes:
        process = str(node.pid) if node.alive else "gone" if node.pid else "not started"
        table.add_row(str(node.id), str(node.port), process, str(node.log))
    Console().print(table)


def _as_json(found: StackStatus) -> dict[str, object]:
    return {
        "brokers": found.brokers,
        "registry": None,
        "state": found.state,
        "nodes": [{"id": n.id, "pid": n.pid, "port": n.port, "alive": n.alive, "log": str(n.log)} for n in found.nodes],
        "dir": str(found.folder),
    }


def _told(stopped: Stopped, where: Path) -> str:
    parts = [
        f"{len(nodes)} {'broker' if len(nodes) == 1 else 'brokers'} {what}"
        for nodes, what in (
            (stopped.ended, "ended"),
            (stopped.killed, "killed, since it did not end by itself"),
            (stopped.gone_before, "gone before"),
        )
        if nodes
    ]
    if not parts:
        parts.append("nothing was running")
    if stopped.data_removed:
        parts.append(f"data in {where} removed")
    return ", ".join(parts)
