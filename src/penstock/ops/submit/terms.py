"""What a submission is asked, and the words that its files share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pydantic import SecretStr

from penstock.assembly.reaching import spark_settings_of
from penstock.assembly.user_code import code_to_ship, folder_of, name_below
from penstock.config import PipelineConfig, reveal
from penstock.config.files import files_behind, secret_files, variables_named
from penstock.errors import MissingError
from penstock.spark.jars import stores_of
from penstock.spark.placement import DeployMode, Placement
from penstock.spark.security import redaction
from penstock.spark.shipping import Progress

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


@dataclass(frozen=True)
class PlannedSubmission:
    """The files, by name, and what comes next."""

    secrets: Path
    """Where secret files are now; the script copies them from there."""
    texts: Mapping[str, str]
    copies: Mapping[str, Path] = field(default_factory=dict)
    """Files to copy unchanged."""
    make: Mapping[str, Callable[[Path, Progress], None]] = field(default_factory=dict)
    """Files that are expensive to build, built only when written."""
    next_steps: tuple[str, ...] = ()


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


# What a pipeline file takes along: itself, what it refers to, the Python that its steps import, what it lists.
#
# Enters: a pipeline. Leaves: the files by their names beside the pipeline file, split into what anyone may read
# and what is a secret, and the names of the environment variables that the file refers to. No secret is read here.


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files of a pipeline, by their names relative to its folder."""

    folder: Path
    pipeline: str
    """The name of the pipeline file itself."""
    files: tuple[str, ...]
    """Files without secrets, including the pipeline file."""
    secret_files: tuple[str, ...]
    variables: Mapping[str, bool]
    """The environment variables that the file references; each may be a secret. False if there is a default."""


def parcel_of(config: PipelineConfig) -> Parcel:
    """What the pipeline takes along. Raises where a file lies outside its folder."""
    file = config.file
    if file is None:
        raise MissingError("FILE_UNUSABLE", f"pipeline {config.name} was not loaded from a file")
    folder, text = folder_of(config), file.read_text(encoding="utf-8", errors="replace")
    secret = {name_below(folder, one) for one in secret_files(config)}
    plain = {name_below(folder, one) for one in files_behind(config)} - secret
    if (code := code_to_ship(config)) is not None:
        plain |= set(code.files)
    return Parcel(folder, file.name, tuple(sorted(plain)), tuple(sorted(secret)), variables_named(text))
