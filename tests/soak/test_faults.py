"""Which faults come when: the seed decides, every kind comes before one comes again, and what is spared is spared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.soak.faults import Faults, Kind
from tests.soak.pipelines import pipelines


def faults(folder: Path, seed: int = 5, apart: bool = True) -> Faults:
    port = SimpleNamespace(port=1)
    there: Any = SimpleNamespace(apart=apart, postgres=port, s3=port, cluster=None, folder=folder)
    driver: Any = None
    return Faults(there, driver, pipelines(folder), seed)


def test_faults_of_one_seed_come_in_one_order(tmp_path: Path) -> None:
    made = [faults(tmp_path / str(number), seed) for number, seed in enumerate((5, 5, 6))]
    orders = [[_next(one).name for _ in one.kinds] for one in made]
    assert orders[0] == orders[1] != orders[2]


def test_faults_every_kind_comes_before_one_comes_again(tmp_path: Path) -> None:
    made = faults(tmp_path)
    names = [_next(made).name for _ in range(2 * len(made.kinds))]
    kinds = {kind.name for kind in made.kinds}
    assert set(names[: len(kinds)]) == set(names[len(kinds) :]) == kinds


def test_faults_that_spare_leave_the_driver_alone(tmp_path: Path) -> None:
    made = faults(tmp_path)
    assert {"driver", "spark"} <= {_next(made).group for _ in made.kinds}
    spared = {_next(made, sparing=True).group for _ in range(200)}
    assert spared == {kind.group for kind in made.kinds} - {"driver"}


def test_faults_two_at_once_are_of_two_groups(tmp_path: Path) -> None:
    made = faults(tmp_path)
    for _ in range(200):
        first = _next(made)
        second = made.next(sparing=False, beside=first)
        assert second is None or second.group != first.group


def test_faults_without_a_network_of_its_own_cut_no_link_and_fill_no_disk(tmp_path: Path) -> None:
    names = {kind.name for kind in faults(tmp_path, apart=False).kinds}
    assert not [name for name in names if "link" in name or "lost" in name or "disk" in name]
    assert {"SIGKILL master", "SIGSTOP broker", "S3 slow"} <= names


def _next(made: Faults, sparing: bool = False) -> Kind:
    found = made.next(sparing=sparing)
    assert found is not None
    return found
