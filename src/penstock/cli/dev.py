"""`penstock dev`: a local Kafka and schema registry, up, down, and how they are."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.spark.cache import cache_home

# Imported where it is used: every command loads this module, few need a Kafka client.
if TYPE_CHECKING:
    from penstock.devstack import Service, StackStatus, Stopped

DEFAULT_PORT = 9092
REGISTRY_PORT = 8081

app = typer.Typer(help="A local Kafka and schema registry, without Docker.", no_args_is_help=True)


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
    registry: Annotated[
        bool, typer.Option("--registry", help="A schema registry beside it; fetched once, 140 MB.")
    ] = False,
    registry_port: Annotated[
        int | None,
        typer.Option(
            help=f"The registry's port; {REGISTRY_PORT} without it, or another one if that is taken.",
            min=1024,
            max=65535,
        ),
    ] = None,
    folder: Dir = None,
) -> None:
    """Start a local Kafka and wait until a client can produce.

    With --registry also a schema registry that speaks the Confluent API; on a Kafka that is up already it is added.
    """
    from rich.console import Console

    from penstock.devstack import DevStack, read_status
    from penstock.spark.jars import broker_classpath, registry_jar
    from penstock.spark.java import find_java

    if brokers not in (None, "1", "3"):
        raise typer.BadParameter(f"{brokers} is neither 1 nor 3", param_hint="--brokers")
    if registry_port is not None and not registry:
        raise typer.BadParameter("it needs --registry", param_hint="--registry-port")
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
        # One that was started before belongs to the stack, and comes up with it.
        registry_jar=registry_jar() if registry or before.registry else None,
        registry_port=registry_port,
    )
    started = time.monotonic()
    with console.status("Starting Kafka and the schema registry ..." if registry else "Starting Kafka ..."):
        stack.start()
    after = f"up after {time.monotonic() - started:.1f} s"
    brokers_were_up = bool(before.nodes) and all(node.alive for node in before.nodes)
    typer.echo(f"Kafka is {'already up' if brokers_were_up else after}: {stack.bootstrap}")
    if stack.registry is not None:
        registry_was_up = before.registry is not None and before.registry.alive
        typer.echo(f"The schema registry is {'already up' if registry_was_up else after}: {stack.registry.url}")
    if before.state != "up":
        typer.echo("Take it down with: penstock dev down" + (f" --dir {folder}" if folder else ""))


@app.command()
def down(
    folder: Dir = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave topics, records and schemas for the next up.")
    ] = False,
) -> None:
    """End the local Kafka and schema registry, and remove their data."""
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
    """Say whether the local Kafka and schema registry are up, and where."""
    from rich.console import Console
    from rich.table import Table

    from penstock.devstack import read_status

    found = read_status(_folder(folder))
    if as_json:
        typer.echo(json.dumps(_as_json(found)))
        return
    # A stack is degraded by the loss of its registry as well.
    kafka = "up" if found.nodes and all(node.alive for node in found.nodes) else found.state
    typer.echo(f"Kafka is {kafka}" + (f": {found.brokers}" if kafka != "down" else ""))
    if found.registry is not None:
        typer.echo(f"The schema registry is {f'up: {found.registry.url}' if found.registry.alive else 'down'}")
    if not found.nodes:
        return
    table = Table("", "port", "process", "log")
    services: list[tuple[str, Service]] = [(f"broker {node.id}", node) for node in found.nodes]
    if found.registry is not None:
        services.append(("registry", found.registry))
    for name, service in services:
        process = str(service.pid) if service.alive else "gone" if service.pid else "not started"
        table.add_row(name, str(service.port), process, str(service.log))
    Console().print(table)


def _as_json(found: StackStatus) -> dict[str, object]:
    return {
        "brokers": found.brokers,
        "registry": found.registry.url if found.registry and found.registry.alive else None,
        "state": found.state,
        "nodes": [{"id": n.id, "pid": n.pid, "port": n.port, "alive": n.alive, "log": str(n.log)} for n in found.nodes],
        "dir": str(found.folder),
    }


def _told(stopped: Stopped, where: Path) -> str:
    parts = [
        f"{_named(services)} {what}"
        for services, what in (
            (stopped.ended, "ended"),
            (stopped.killed, "killed, since it did not end by itself"),
            (stopped.gone_before, "gone before"),
        )
        if services
    ]
    if not parts:
        parts.append("nothing was running")
    if stopped.data_removed:
        parts.append(f"data in {where} removed")
    return ", ".join(parts)


def _named(services: Sequence[Service]) -> str:
    from penstock.devstack import Registry

    brokers = sum(not isinstance(service, Registry) for service in services)
    words = [f"{brokers} {'broker' if brokers == 1 else 'brokers'}"] if brokers else []
    if brokers < len(services):
        words.append("the registry")
    return " and ".join(words)
