"""A submission: everything that another machine needs to start a pipeline's driver, as files and one command.

`plan_submission` says what it is made of and touches nothing; `write_submission` writes it down for a person, a
repository or an operator of Kubernetes; `apply_submission` runs the command that was written. A secret is never part of
it: files name the variables and the secrets of the cluster that hold one.

For YARN and standalone clusters it is one script for spark-submit, with what it sends along. In client mode the driver
runs where the script does, by the Python there, in which Penstock is installed. In cluster mode the packages go along
to the driver as well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from penstock.assembly.placing import check_places, placement_of, shipping_of
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.ops.submit.kubernetes import kubernetes_files
from penstock.ops.submit.terms import APP, APP_TEXT, SCRIPT, PlannedSubmission, Submission, Terms, parcel_of
from penstock.spark.cache import link_or_copy
from penstock.spark.jars import put_jars
from penstock.spark.java import find_java
from penstock.spark.placement import DeployMode, Placement
from penstock.spark.session import spark_home
from penstock.spark.shipping import PACKAGES, Progress, Shipping

_FOLDER = "pipeline"
_UNPACKED = "penstock_pipeline"
# The driver's Python is where the script runs, and has Penstock; the executors' may be elsewhere.
_DRIVER_PYTHON = 'printf \'spark.pyspark.driver.python %s\\n\' "${PENSTOCK_PYTHON:-python3}" >> "$settings"'


# A variable as a line of a properties file: to Java a backslash and a line's end mean something there. The value goes
# through pipes, since everybody sees a command line.
_PASS = """\
put() {
  printf 'spark.yarn.appMasterEnv.%s ' "$1"
  printf '%s' "$2" | sed 's/\\\\/\\\\\\\\/g' | awk 'NR > 1 { printf "\\\\n" } { printf "%s", $0 }'
  echo
} >> "$settings\""""


def script_files(terms: Terms) -> PlannedSubmission:
    """A script for spark-submit, with what it sends along."""
    shipping = shipping_of(terms.config)
    parcel = terms.parcel
    make: dict[str, Callable[[Path, Progress], None]] = {"jars": lambda folder, _: put_jars(folder, terms.stores)}
    if shipping.packed:
        make["packages.tar.gz"] = lambda target, progress: link_or_copy(shipping.pack_environment(progress), target)
    missing = [
        f"{name} is a secret and not copied: put it into {_FOLDER}, or set PENSTOCK_SECRETS to its folder"
        for name in parcel.secret_files
    ]
    python = "" if terms.asked.deploy_mode == "cluster" else ", and PENSTOCK_PYTHON to a Python with Penstock"
    return PlannedSubmission(
        secrets=parcel.folder,
        texts={SCRIPT: script(terms, shipping), APP: APP_TEXT},
        copies={f"{_FOLDER}/{name}": parcel.folder / name for name in parcel.files},
        make=make,
        next_steps=(*missing, f"next: ./{SCRIPT}, with SPARK_HOME set to a Spark 4.1{python}"),
    )


def script(terms: Terms, shipping: Shipping) -> str:
    """The script."""
    on_cluster = terms.asked.deploy_mode == "cluster"
    words = [
        "--master", terms.placement.master,
        "--deploy-mode", terms.asked.deploy_mode,
        "--name", f"penstock {terms.config.name}",
        "--properties-file", Raw('"$settings"'),
        "--load-spark-defaults",
        "--jars", Raw('"$(ls jars/*.jar | paste -sd, -)"'),
    ]  # fmt: skip
    variables = sorted(terms.parcel.variables.items())
    archives = [f"packages.tar.gz#{PACKAGES}"] if shipping.packed else []
    archives += [f"{_FOLDER}.zip#{_UNPACKED}"] if on_cluster else []
    if archives:
        words += ["--archives", ",".join(archives)]
    program = shlex.join([APP, *terms.run_words(_UNPACKED if on_cluster else _FOLDER)])
    lines = [
        "#!/bin/sh",
        f"# Starts the pipeline {terms.config.name} by spark-submit. Secrets are in the environment of",
        "# whoever runs this, and in files that only they can read.",
        "set -eu",
        "umask 077",
        'cd "$(dirname "$0")"',
        *(f': "${{{name}:?is needed by the pipeline file}}"' for name, needed in variables if needed),
        *(_fetched(name) for name in terms.parcel.secret_files),
        *([f"(cd {_FOLDER} && python3 -m zipfile -c ../{_FOLDER}.zip .)"] if on_cluster else []),
        "settings=$(mktemp)",
        'trap \'rm -f "$settings"\' EXIT',
        'cat >> "$settings" <<\'END\'',
        *(_property(name, value) for name, value in sorted(_settings(terms, shipping, on_cluster).items())),
        "END",
        *([_PASS, *(f'put {name} "${{{name}-}}"' for name, _ in variables)] if on_cluster else []),
        *([] if on_cluster else [_DRIVER_PYTHON]),
    ]  # fmt: skip
    command = " \\\n  ".join([*_lines(words), program])
    return "\n".join([*lines, f'"${{SPARK_HOME:?names the folder of Spark}}"/bin/spark-submit \\\n  {command}', ""])


class Raw(str):
    """A word that the shell is to expand."""

    __slots__ = ()


def _lines(words: list[str]) -> list[str]:
    """The words as a shell takes them, an option and its value on one line."""
    quoted = [word if isinstance(word, Raw) else shlex.quote(word) for word in words]
    lines: list[str] = []
    for word in quoted:
        if lines and lines[-1].startswith("--") and " " not in lines[-1] and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _settings(terms: Terms, shipping: Shipping, on_cluster: bool) -> dict[str, str]:
    found = {**terms.settings, "spark.pyspark.python": shipping.interpreter}
    if shipping.packed:
        found["spark.executorEnv.PYTHONPATH"] = PACKAGES
        if on_cluster:
            found["spark.yarn.appMasterEnv.PYTHONPATH"] = PACKAGES
    if on_cluster:
        found["spark.yarn.appMasterEnv.PENSTOCK_HOME"] = "penstock_home"
    return found


def _fetched(name: str) -> str:
    """A file that is a secret, from where those are."""
    target = f"{_FOLDER}/{name}"
    folder, target, name = (shlex.quote(one) for one in (str(Path(target).parent), target, name))
    return f'[ -f {target} ] || {{ mkdir -p {folder}; cp "${{PENSTOCK_SECRETS:?}}"/{name} {target}; }}'


def _property(name: str, value: str) -> str:
    """A line of a properties file of Java, to which a backslash, and in a name a separator, means something."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return re.sub(r"([:=#! ])", r"\\\1", name) + " " + escaped


__all__ = ["PlannedSubmission", "Submission", "apply_submission", "cluster_of", "plan_submission", "write_submission"]


def plan_submission(config: PipelineConfig, asked: Submission) -> PlannedSubmission:
    """What a submission is made of. Raises where the cluster could not run it."""
    placement = cluster_of(config, asked.deploy_mode)
    check_places(config, placement)
    terms = Terms(config, asked, placement, parcel_of(config))
    return kubernetes_files(terms) if placement.kind == "kubernetes" else script_files(terms)


def cluster_of(config: PipelineConfig, deploy_mode: DeployMode) -> Placement:
    """Where a submission goes. Raises where no cluster is named, or it runs no such driver."""
    placement = placement_of(config, deploy_mode)
    if placement.is_local:
        raise MissingError(
            "MASTER_MISSING",
            f"submitting {config.name}: no cluster is given",
            context={"spark.master": placement.master},
            hint="use --master spark://HOST:PORT, k8s://URL or yarn, or set spark.master in the file",
        )
    if placement.kind == "standalone" and deploy_mode == "cluster":
        raise MissingError(
            "DEPLOY_MODE_UNSUPPORTED",
            "a standalone cluster cannot run the driver of a Python program",
            context={"master": placement.master, "deploy mode": deploy_mode},
            hint="remove --deploy-mode, and run `penstock submit` on a machine of the cluster by a service manager\n"
            "Kubernetes and YARN run drivers themselves",
        )
    return placement


def write_submission(
    planned: PlannedSubmission, folder: Path, progress: Progress = lambda done, of: None
) -> list[Path]:
    """Write the files; others in the folder stay. `progress` is called while packages are packed."""
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
