"""A submission: everything that another machine needs to start a pipeline's driver, as files and one command.

`plan_submission` says what it is made of and touches nothing; `write_submission` writes it down for a person, a
repository or an operator of Kubernetes; `apply_submission` runs the command that was written. A secret is never part of
it: files name the variables and the secrets of the cluster that hold one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.assembly.placing import check_places, placement_of
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.ops.submit.kubernetes import kubernetes_files
from penstock.ops.submit.parcel import parcel_of
from penstock.ops.submit.script import script_files
from penstock.ops.submit.terms import SCRIPT, Submission, Terms
from penstock.spark.environment import Progress
from penstock.spark.home import spark_home
from penstock.spark.java import find_java
from penstock.spark.placement import DeployMode, Placement

__all__ = ["PlannedSubmission", "Submission", "apply_submission", "cluster_of", "plan_submission", "write_submission"]


@dataclass(frozen=True)
class PlannedSubmission:
    """The files, by name, and what comes next."""

    secrets: Path
    """Where files that are secrets are now; the script takes them from there."""
    texts: Mapping[str, str]
    copies: Mapping[str, Path]
    """Files that are taken as they are."""
    make: Mapping[str, Callable[[Path, Progress], None]] = field(default_factory=dict)
    """Files that take a while, made only where they are written."""
    next_steps: tuple[str, ...] = ()


def plan_submission(config: PipelineConfig, asked: Submission) -> PlannedSubmission:
    """What a submission is made of. Raises where the cluster could not run it."""
    placement = cluster_of(config, asked.deploy_mode)
    check_places(config, placement)
    terms = Terms(config, asked, placement, parcel_of(config))
    return PlannedSubmission(**(kubernetes_files(terms) if placement.kind == "kubernetes" else script_files(terms)))


def cluster_of(config: PipelineConfig, deploy_mode: DeployMode) -> Placement:
    """Where a submission goes. Raises where no cluster is named, or it runs no such driver."""
    placement = placement_of(config, deploy_mode)
    if placement.is_local:
        raise MissingError(
            "MASTER_MISSING",
            f"submitting {config.name}: no cluster is named",
            context={"spark.master": placement.master},
            hint="give --master spark://HOST:PORT, k8s://URL or yarn, or write spark.master in the file",
        )
    if placement.kind == "standalone" and deploy_mode == "cluster":
        raise MissingError(
            "DEPLOY_MODE_UNSUPPORTED",
            "a standalone cluster does not run the driver of a Python program",
            context={"master": placement.master, "deploy mode": deploy_mode},
            hint="leave --deploy-mode out, and run `penstock submit` on a machine of the cluster by a service manager\n"
            "Kubernetes and YARN run drivers themselves",
        )
    return placement


def write_submission(
    planned: PlannedSubmission, folder: Path, progress: Progress = lambda done, of: None
) -> list[Path]:
    """Write the files; what is in the folder under another name stays. `progress` is told while packages are packed."""
    written = []
    for name, text in planned.texts.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            target.chmod(0o755)
        written.append(target)
    for name, source in planned.copies.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(target)
    for name, make in planned.make.items():
        make(folder / name, progress)
        written.append(folder / name)
    return written


def apply_submission(planned: PlannedSubmission, folder: Path) -> int:
    """Run the command that was written into a folder, with its output as it is; its exit code."""
    environment = {"SPARK_HOME": str(spark_home()), "JAVA_HOME": str(find_java().home)}
    environment["PENSTOCK_SECRETS"] = str(planned.secrets)
    command = [str(folder.absolute() / SCRIPT)]
    return subprocess.run(command, cwd=folder, env={**environment, **os.environ}, check=False).returncode
