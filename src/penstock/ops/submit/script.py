"""A submission by spark-submit, for YARN and standalone clusters: one script, with what it sends beside it.

In client mode the driver runs where the script does, by the Python there, in which Penstock is installed. In cluster
mode the packages go along to the driver as well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.assembly.placing import shipping_of
from penstock.ops.submit.terms import APP, APP_TEXT, SCRIPT, Terms
from penstock.spark.cache import link_or_copy
from penstock.spark.environment import Progress
from penstock.spark.jars import put_jars
from penstock.spark.shipping import PACKAGES, Shipping

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


def script_files(terms: Terms) -> dict[str, Any]:
    """The parts of a `PlannedSubmission`."""
    shipping = shipping_of(terms.config)
    parcel = terms.parcel
    make: dict[str, Callable[[Path, Progress], None]] = {"jars": lambda folder, _: put_jars(folder, terms.stores)}
    if shipping.packed:
        make["packages.tar.gz"] = lambda target, progress: link_or_copy(_packed(shipping, progress), target)
    missing = [
        f"{name} is a secret, and not copied: put it into {_FOLDER}, or name its folder in PENSTOCK_SECRETS"
        for name in parcel.secret_files
    ]
    return {
        "secrets": parcel.folder,
        "texts": {SCRIPT: script(terms, shipping), APP: APP_TEXT},
        "copies": {f"{_FOLDER}/{name}": parcel.folder / name for name in parcel.files},
        "make": make,
        "next_steps": (*missing, f"next: ./{SCRIPT}, with SPARK_HOME naming a Spark 4.1{_python(terms)}"),
    }


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
        *(f': "${{{name}:?is needed by the pipeline file}}"' for name, needed in _variables(terms) if needed),
        *(_fetched(name) for name in terms.parcel.secret_files),
        *([f"(cd {_FOLDER} && python3 -m zipfile -c ../{_FOLDER}.zip .)"] if on_cluster else []),
        "settings=$(mktemp)",
        'trap \'rm -f "$settings"\' EXIT',
        'cat >> "$settings" <<\'END\'',
        *(_property(name, value) for name, value in sorted(_settings(terms, shipping, on_cluster).items())),
        "END",
        *([_PASS, *(_passed(name) for name, _ in _variables(terms))] if on_cluster else []),
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


def _variables(terms: Terms) -> list[tuple[str, bool]]:
    return [(name, needed) for name, needed in sorted(terms.parcel.variables.items())]


def _settings(terms: Terms, shipping: Shipping, on_cluster: bool) -> dict[str, str]:
    found = {**terms.settings, "spark.pyspark.python": shipping.interpreter}
    if shipping.packed:
        found["spark.executorEnv.PYTHONPATH"] = PACKAGES
        if on_cluster:
            found["spark.yarn.appMasterEnv.PYTHONPATH"] = PACKAGES
    if on_cluster:
        found["spark.yarn.appMasterEnv.PENSTOCK_HOME"] = "penstock_home"
    return found


def _python(terms: Terms) -> str:
    return "" if terms.asked.deploy_mode == "cluster" else ", and PENSTOCK_PYTHON a Python that has Penstock"


def _fetched(name: str) -> str:
    """A file that is a secret, from where those are."""
    target = f"{_FOLDER}/{name}"
    folder, target, name = (shlex.quote(one) for one in (str(Path(target).parent), target, name))
    return f'[ -f {target} ] || {{ mkdir -p {folder}; cp "${{PENSTOCK_SECRETS:?}}"/{name} {target}; }}'


def _property(name: str, value: str) -> str:
    """A line of a properties file of Java, to which a backslash, and in a name a separator, means something."""
    told = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return re.sub(r"([:=#! ])", r"\\\1", name) + " " + told


def _passed(name: str) -> str:
    return f'put {name} "${{{name}-}}"'


def _packed(shipping: Shipping, progress: Progress) -> Path:
    return shipping.pack_environment(progress)
