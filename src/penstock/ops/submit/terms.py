"""What a submission is asked, and the words that its files share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import SecretStr

from penstock.assembly.reaching import spark_settings_of
from penstock.config import PipelineConfig, reveal
from penstock.ops.submit.parcel import Parcel
from penstock.spark.jars import stores_of
from penstock.spark.placement import DeployMode, Placement
from penstock.spark.security import redaction

SCRIPT = "submit.sh"
APP = "penstock_app.py"
APP_TEXT = '''"""Penstock as the program of a spark-submit: what follows it there is a command line of `penstock`."""

from penstock.cli.main import main

main()
'''


@dataclass(frozen=True, slots=True)
class Submission:
    """What the command line asks."""

    file: Path
    deploy_mode: DeployMode = "client"
    options: tuple[str, ...] = ()
    """Options of `penstock run`."""
    image: str | None = None
    namespace: str = "default"
    service_account: str = "spark"


@dataclass(frozen=True, slots=True)
class Terms:
    """All that the files are made of."""

    config: PipelineConfig
    asked: Submission
    placement: Placement
    parcel: Parcel

    @property
    def name(self) -> str:
        """The pipeline's name as Kubernetes takes names."""
        plain = re.sub(r"[^a-z0-9-]+", "-", self.config.name.lower()).strip("-")
        return plain[:50].strip("-") or "pipeline"

    @property
    def release(self) -> str:
        """The version of Penstock."""
        return version("penstock")

    @property
    def stores(self) -> list[str]:
        """The object stores that Spark needs jars for."""
        return stores_of(spark_settings_of(self.config))

    def run_words(self, folder: str) -> list[str]:
        """The command line of `penstock`, with the pipeline file in some folder."""
        return ["run", f"{folder}/{self.parcel.pipeline}", "--log-format", "json", *self.asked.options]

    @property
    def settings(self) -> dict[str, str]:
        """The file's settings of Spark, without the master and those by a reference: these the driver reads itself.

        With the names by which Spark is to know secrets: what starts the driver shows settings too.
        """
        written = self.config.positions.values
        found = {
            name: value
            for name, value in self.config.spark.items()
            if not isinstance(value, SecretStr)
            and name != "spark.master"
            and not (("spark", name) in written and "${" in written["spark", name].text)
        }
        return {**found, **redaction(reveal(self.config.spark))}

    def setting(self, name: str, default: str) -> str:
        """One of these."""
        return self.settings.get(name, default)
