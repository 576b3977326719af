"""What a pipeline needs to know of the cluster that it runs on, beside `spark.master`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.config.fields import Location, Section, Text, is_uri, wrong


def _check_folder(location: str) -> str:
    if is_uri(location):
        raise wrong("a folder of the cluster's machines is expected", "what an address names is shared as it is")
    return location


def _check_file(location: str) -> str:
    if is_uri(location):
        raise wrong("a file below the folder of the pipeline file is expected")
    return location


class ClusterConfig(Section):
    """What the machines of a cluster share and have. Not used where `spark.master` is local or on this machine."""

    shared_paths: Annotated[tuple[Annotated[Location, AfterValidator(_check_folder)], ...], Field(strict=False)] = (
        Field(
            default=(),
            description="Folders that every machine of the cluster sees under the same path, such as a network file "
            "system. Tables, files and the checkpoint may lie in them; any other local path is refused on a cluster.",
            examples=[["/mnt/lake"]],
        )
    )
    environment: Literal["pack", "installed"] | None = Field(
        default=None,
        description="Where executors have their Python packages from: `pack` sends those of this environment along, "
        "packed once for each version of it; `installed` finds them there, as in an image. Left out, those of this "
        "machine where the cluster is on it, `installed` on Kubernetes and inside spark-submit, else `pack`.",
    )
    python: Text | None = Field(
        default=None,
        description="The Python of the executors; left out, `python3.` and the version that runs Penstock, by which "
        "packages are packed.",
        examples=["/usr/bin/python3.11"],
    )
    packages: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        default=(),
        description="Packages to pack beside those of Penstock and those that the pipeline's own Python imports.",
        examples=[["geopy"]],
    )
    extra_files: Annotated[tuple[Annotated[Location, AfterValidator(_check_file)], ...], Field(strict=False)] = Field(
        default=(),
        description="Files below the folder of the pipeline file that its own Python reads, or imports by a name made "
        "at run time. They are sent along with the modules that it imports; nothing else in the folder is. A file that "
        "`${file:...}` names holds a secret, and is refused.",
        examples=[["rates.csv"]],
    )
