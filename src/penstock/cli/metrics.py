"""`penstock metrics`: a dashboard and alert rules for Prometheus as files, and the figures of a running pipeline."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json
from penstock.cli.render import out, print_json, table
from penstock.errors import MissingError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig

app = typer.Typer(
    help="Metrics for Prometheus: a Grafana dashboard, alert rules, and the current metrics of a running pipeline."
)

_SECONDS = 5.0
_NEXT = {
    "grafana.json": "import it: Dashboards, New, Import",
    "alerts.rules.yaml": "add it to rule_files of Prometheus",
}


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The target folder.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that differ; each is kept as NAME.bak.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Write out the Grafana dashboard and the alert rules for Prometheus."""
    from importlib.resources import files

    texts = {name: (files("penstock.metrics") / "files" / name).read_text("utf-8") for name in _NEXT}
    kept = [name for name, text in texts.items() if (folder / name).exists() and (folder / name).read_text() != text]
    if kept and not force:
        raise MissingError(
            "FILE_EXISTS",
            f"{folder / kept[0]} already exists and differs",
            hint="choose another folder, or use --force: the old file is kept as a copy",
        )
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        copy = next(free for n in count() if not (free := folder / f"{name}.bak{n or ''}").exists())
        if name in kept:
            if not dry_run:
                path.replace(copy)
            out.print(f"{'would keep' if dry_run else 'kept'} the old one as {escape(str(copy))}")
        if not dry_run:
            path.write_text(text, "utf-8")
        out.print(f"{'would write' if dry_run else 'wrote'} {escape(str(path))}  [dim]{_NEXT[name]}[/]")


@app.command()
def show(file: File, as_json: Json = False) -> None:
    """Print the figures of a running pipeline, as Prometheus reads them from its endpoint."""
    from prometheus_client.parser import text_string_to_metric_families

    from penstock.config import load

    config = load(file)
    families = list(text_string_to_metric_families(_scrape(config)))
    samples = [sample for family in families for sample in family.samples if "le" not in sample.labels]
    if as_json:
        figures = [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]
        print_json({"pipeline": config.name, "figures": figures})
        return
    rows = table("figure", "of", "value", numbers=("value",))
    for sample in samples:
        labels = ", ".join(f"{name} {value}" for name, value in sample.labels.items() if name != "pipeline")
        rows.add_row(sample.name, escape(labels), f"{sample.value:,.10g}")
    out.print(rows)


def _scrape(config: PipelineConfig) -> str:
    import requests

    if config.metrics is None or not config.metrics.port:
        raise MissingError(
            "METRICS_OFF",
            f"reading the metrics of pipeline {config.name}: its file sets no metrics port",
            hint="add metrics: {port: 9400}, and restart it",
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.metrics.host, config.metrics.host)
    address = f"{host}:{config.metrics.port}"
    try:
        response = requests.get(f"http://{address}/metrics", timeout=_SECONDS)
        response.raise_for_status()
    except requests.RequestException:
        raise MissingError(
            "METRICS_SILENT",
            f"reading the metrics of pipeline {config.name}: no response from {address}",
            hint="is it running, and was it started after the port was added? penstock status FILE",
        ) from None
    return response.text
