"""`penstock dev`: a local Kafka, schema registry and Spark cluster; `penstock demo`: a whole pipeline on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import Json
from penstock.cli.render import out, print_json, table
from penstock.cli.signals import undisturbed
from penstock.spark.cache import cache_home
from penstock.wording import counted

# Every command loads this module, few need a Kafka client.
if TYPE_CHECKING:
    from penstock.devstack import DevStack, Service, SparkCluster, StackState, Stopped
    from penstock.ops.demo import DemoSummary

DEFAULT_PORT = 9092
REGISTRY_PORT = 8081

app = typer.Typer(help="A local Kafka, schema registry and Spark cluster, without Docker.", no_args_is_help=True)


Dir = Annotated[
    Path | None, typer.Option("--dir", help="The folder of its data, logs and process file.", show_default=False)
]


def _folder(given: Path | None) -> Path:
    return (given or cache_home() / "dev").absolute()


@app.command()
def up(
    brokers: Annotated[str | None, typer.Option(help="1 or 3; default 1.", metavar="1|3")] = None,
    port: Annotated[
        int | None,
        typer.Option(help=f"The first broker's port; default {DEFAULT_PORT}.", min=1024, max=65533),
    ] = None,
    registry: Annotated[
        bool, typer.Option("--registry", help="Also a schema registry; downloaded once, 140 MB.")
    ] = False,
    registry_port: Annotated[
        int | None,
        typer.Option(
            help=f"The registry's port; default {REGISTRY_PORT}, or another one if it is in use.",
            min=1024,
            max=65535,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Also a Spark cluster with this many workers.", min=1, max=16, show_default=False),
    ] = None,
    worker_cores: Annotated[int, typer.Option(help="The cores of each worker for executors.", min=1)] = 1,
    worker_memory: Annotated[
        str, typer.Option(help="The memory of each worker for executors, such as 1g or 800m.")
    ] = "1g",
    secure: Annotated[
        bool,
        typer.Option("--secure", help="With TLS, users, certificates and access control; prints the settings."),
    ] = False,
    folder: Dir = None,
) -> None:
    """Start a local Kafka and wait until a client can produce.

    With --registry also a schema registry with the Confluent API, with --workers also a Spark cluster. If Kafka is
    already up, they are added to it.
    """
    from rich.console import Console

    from penstock.devstack import DevStack, Secured, SecureStack, SparkInstalled, read_status
    from penstock.spark.jars import broker_classpath, registry_jar
    from penstock.spark.java import find_java
    from penstock.spark.session import spark_home

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
            console.print(f"The brokers in {where} ended without `dev down`; restarting on their data.")
    java = find_java()
    stack = DevStack(
        where,
        java=java.executable,
        classpath=broker_classpath(),
        brokers=int(brokers) if brokers else None,
        port=port,
        # One that was started before belongs to the stack, and comes up with it.
        registry_jar=registry_jar() if registry or before.registry else None,
        registry_port=registry_port,
        spark=SparkInstalled(spark_home(), java.home) if workers or before.spark else None,
        workers=workers,
        worker_cores=worker_cores,
        worker_memory=worker_memory,
        secure=Secured() if secure else None,
    )
    started = time.monotonic()
    names = ["Kafka", *(["the schema registry"] if registry else []), *(["Spark"] if workers else [])]
    with console.status(f"Starting {' and '.join(names)} ..."):
        stack.start()
    after = f"up after {time.monotonic() - started:.1f} s"
    brokers_were_up = bool(before.nodes) and all(node.alive for node in before.nodes)
    typer.echo(f"Kafka is {'already up' if brokers_were_up else after}: {stack.bootstrap}")
    if stack.registry is not None:
        registry_was_up = before.registry is not None and before.registry.alive
        typer.echo(f"The schema registry is {'already up' if registry_was_up else after}: {stack.registry.url}")
    if stack.spark is not None:
        spark_was_up = before.spark is not None and before.spark.alive
        typer.echo(
            f"Spark is {'already up' if spark_was_up else after}: {stack.spark.master.url} "
            f"with {_workers(stack.spark)}; UI: {stack.spark.master.page}"
        )
    if (secured := SecureStack.of(where)) is not None:
        typer.echo(f"Security is on. In a pipeline file:\n{secured.how_to(stack.bootstrap)}")
        typer.echo(f"Other users (guest has no rights) are in {secured.folder}")
    if before.state != "up":
        typer.echo("Stop it with: penstock dev down" + (f" --dir {folder}" if folder else ""))


@app.command()
def down(
    folder: Dir = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep topics, records and schemas for the next up.")
    ] = False,
) -> None:
    """End the local Kafka, schema registry and Spark cluster, and remove their data."""
    from rich.console import Console

    from penstock.devstack import stop_stack

    where = _folder(folder)
    with Console(stderr=True).status("Stopping Kafka ..."):
        stopped = stop_stack(where, keep_data=keep_data)
    typer.echo(_summary(stopped, where))


@app.command()
def status(
    folder: Dir = None,
    as_json: Json = False,
) -> None:
    """Show whether the local Kafka, schema registry and Spark cluster are up, and where."""
    from penstock.devstack import SecureStack, read_status

    where = _folder(folder)
    found = read_status(where)
    if as_json:
        print_json(_as_json(found, where))
        return
    # A stack is degraded by the loss of its registry as well.
    kafka = "up" if found.nodes and all(node.alive for node in found.nodes) else found.state
    typer.echo(f"Kafka is {kafka}" + (f": {found.brokers}" if kafka != "down" else ""))
    if found.registry is not None:
        typer.echo(f"The schema registry is {f'up: {found.registry.url}' if found.registry.alive else 'down'}")
    if (secured := SecureStack.of(where)) is not None:
        typer.echo(f"Security is on: certificates and passwords are in {secured.folder}")
    if found.spark is not None:
        up = f"up: {found.spark.master.url} with {_workers(found.spark)}" if found.spark.master.alive else "down"
        typer.echo(f"Spark is {up}")
    if not found.nodes:
        return
    for name, service in _services(found):
        process = f"process {service.pid}" if service.alive else "gone" if service.pid else "not started"
        typer.echo(f"  {name:14}  port {service.port:<5}  {process:15}  {service.log}")


def _services(found: StackState) -> list[tuple[str, Service]]:
    services: list[tuple[str, Service]] = [(f"broker {node.id}", node) for node in found.nodes]
    if found.registry is not None:
        services.append(("registry", found.registry))
    if found.spark is not None:
        services += [(service.folder.name.replace("-", " "), service) for service in found.spark.services]
    return services


def _as_json(found: StackState, where: Path) -> dict[str, object]:
    from penstock.devstack import SecureStack

    secured = SecureStack.of(where)
    return {
        "brokers": found.brokers,
        "registry": found.registry.url if found.registry and found.registry.alive else None,
        "spark": found.spark.master.url if found.spark and found.spark.master.alive else None,
        "state": found.state,
        "nodes": [{"id": node.id, **_service_json(node)} for node in found.nodes],
        "services": [{"name": name, **_service_json(service)} for name, service in _services(found)],
        "dir": str(where),
        "secure": secured.as_json() if secured is not None else None,
    }


def _service_json(service: Service) -> dict[str, object]:
    return {"pid": service.pid, "port": service.port, "alive": service.alive, "log": str(service.log)}


def _summary(stopped: Stopped, where: Path) -> str:
    parts = [
        f"{_named(services)} {what}"
        for services, what in (
            (stopped.ended, "ended"),
            (stopped.killed, "killed, because it did not stop"),
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
    from penstock.devstack import Registry, SparkMaster

    brokers = sum(not isinstance(service, Registry | SparkMaster) for service in services)
    words = [counted(brokers, "broker")] if brokers else []
    words += ["the registry"] if any(isinstance(service, Registry) for service in services) else []
    words += ["Spark"] if any(isinstance(service, SparkMaster) for service in services) else []
    return " and ".join(words)


def _workers(spark: SparkCluster) -> str:
    alive = [worker for worker in spark.workers if worker.alive]
    cores = sum(worker.cores for worker in alive)
    return f"{counted(len(alive), 'worker')}, {counted(cores, 'core')}"


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", help="The folder of the pipeline, its tables and the broker.")
    ] = Path("penstock-demo"),
    events: Annotated[int, typer.Option(min=150_000, help="How many orders to send.")] = 200_000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the broker running afterwards.")] = False,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Then continue with more orders and the dashboard, until Ctrl-C.")
    ] = False,
) -> None:
    """The whole thing on this machine: a real broker, events with faults in them, the pipeline, the summary."""
    from penstock.cli.run import run as run_command
    from penstock.devstack import DevStack
    from penstock.ops.demo import fresh_folder, live_demo
    from penstock.spark.jars import broker_classpath
    from penstock.spark.java import find_java

    began = time.monotonic()
    folder = fresh_folder(folder)
    stack = DevStack(folder / "dev", java=find_java().executable, classpath=broker_classpath(), brokers=1, port=None)
    with ExitStack() as cleanup:
        cleanup.push(partial(_end_stack, stack, keep))
        summary = _run_demo(folder, events, stack)
        _show_demo(summary, time.monotonic() - began, keep, with_dashboard)
        if with_dashboard:
            out.print("\n[bold]now live[/], with a burst every minute; Ctrl-C ends it")
            # An interrupt before the first batch is no failure: with --keep the broker stays up.
            with live_demo(folder, events, stack) as file, suppress(typer.Exit):
                run_command([file], with_dashboard=True)


def _run_demo(folder: Path, events: int, stack: DevStack) -> DemoSummary:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from penstock.engine.listener import BatchDone, Event, Notice, Started
    from penstock.ops.demo import run_demo

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=out.is_terminal,
    ) as bars:
        starting = bars.add_task("starting a Kafka broker", total=1)
        stack.stop()  # an earlier demo may have left its broker up, with its topic
        stack.start()
        bars.update(starting, completed=1)
        sending = bars.add_task("sending events", total=events)
        running = bars.add_task("starting Spark", total=events)

        def progress(_: str, done: int, total: int) -> None:
            bars.update(sending, completed=done, total=total)

        def listen(event: Event) -> None:
            match event:
                case Started():
                    bars.update(running, description=f"running the pipeline ({event.lane} lane)")
                case BatchDone(metrics):
                    bars.update(running, advance=metrics.rows_in)
                case Notice(text):
                    bars.console.print(escape(text))
                case _:
                    pass

        return run_demo(folder, events, stack, listen, progress)


def _end_stack(stack: DevStack, keep: bool, kind: type[BaseException] | None, *_: object) -> None:
    """Stop the broker, unless the demo succeeded and the broker is to be kept."""
    if kind is None and keep:
        return
    with undisturbed():
        stack.stop()


def _show_demo(s: DemoSummary, seconds: float, keep: bool, with_dashboard: bool) -> None:
    rows = table("orders", "count", numbers=("count",))
    rows.add_row("sent", f"{s.sent:,}")
    rows.add_row("landed in the table", f"{s.landed:,}")
    rows.add_row("duplicates removed", f"{s.duplicates:,}")
    rows.add_row("filtered by `amount >= 0`", f"{s.filtered:,}")
    rows.add_row("quarantined", f"{sum(s.quarantined.values()):,}")
    for code, count in sorted(s.quarantined.items()):
        rows.add_row(f"  {code}", f"{count:,}")
    rows.add_row("lag", f"{s.lag:,}")
    out.print(rows)
    out.print(
        f"\n{s.sent:,} = {s.landed:,} + {s.duplicates:,} + {s.filtered:,} + {sum(s.quarantined.values()):,}: "
        "[bold green]nothing lost, nothing duplicated[/]"
    )
    out.print(
        f"{counted(s.batches, 'batch', 'batches')}, {counted(s.files, 'file')} in the table, "
        f"{s.run_seconds:.1f} s for the run including Spark's start, {seconds:.1f} s in all\n"
    )
    out.print("[bold]three of the quarantined[/]")
    for sample in s.samples:
        value = "null" if sample["value"] is None else repr(sample["value"][:60])[1:]
        out.print(f"  {sample['topic']}[{sample['partition']}] offset {sample['offset']}  {sample['code']}")
        out.print(f"    {escape(sample['message'])}")
        out.print(f"    {escape(value)}", style="dim")
    if with_dashboard:
        return
    file = s.folder / "orders.yaml"
    out.print("\n[bold]try next[/]")
    out.print(f"  penstock demo --dashboard --dir {s.folder}    [dim]# the same, then more orders and a web page[/]")
    out.print(f"  less {file}")
    out.print(f"  penstock validate {file}")
    if keep:
        out.print(f"  penstock plan {file}")
        out.print(f"  penstock run {file}")
        out.print(f"  penstock dev down --dir {s.folder / 'dev'}    [dim]# the broker is still up at {s.brokers}[/]")
    else:
        out.print(f"  penstock demo --keep --dir {s.folder}    [dim]# the same, and leave the broker up[/]")
