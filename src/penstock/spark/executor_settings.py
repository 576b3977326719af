"""What a master makes necessary: how its executors get the jars, the Python and the way back to the driver."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.spark.environment import Progress
from penstock.spark.placement import Placement
from penstock.spark.shipping import Shipping

_IPV4 = "-Djava.net.preferIPv4Stack=true"


def executor_settings(
    placement: Placement,
    asked: Mapping[str, str],
    jars: Sequence[Path],
    shipping: Shipping,
    progress: Progress = lambda done, of: None,
) -> dict[str, str]:
    """The settings for executors that are no part of the driver; lists that were asked for go on."""
    if placement.is_local:
        return {}
    if not shipping.applies(placement):
        # They find the jars where they are, and the same Python.
        found = {
            "spark.executor.extraClassPath": os.pathsep.join(map(str, jars)),
            "spark.executor.extraJavaOptions": _IPV4,
        }
    else:
        found = shipping.settings(progress)
        if shipping.packed or placement.kind != "kubernetes":
            found["spark.jars"] = ",".join(map(str, jars))
    for name, separator in _LISTS.items():
        if name in found and asked.get(name):
            found[name] = f"{found[name]}{separator}{asked[name]}"
    return found


_LISTS = {
    "spark.jars": ",",
    "spark.archives": ",",
    "spark.executor.extraClassPath": os.pathsep,
    "spark.executor.extraJavaOptions": " ",
    "spark.executorEnv.PYTHONPATH": os.pathsep,
}
