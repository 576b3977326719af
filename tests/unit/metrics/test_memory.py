"""How full the memory is."""

from __future__ import annotations

from pathlib import Path

from penstock.metrics.memory import _of_group, memory_in_use


def test_memory_in_use_is_a_share() -> None:
    assert 0 < memory_in_use() <= 1


def test_memory_of_a_control_group_counts_what_cannot_be_given_back(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    assert _of_group(tmp_path) == 0.8


def test_memory_without_a_control_group_limit_is_the_machines(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert _of_group(tmp_path) == 0.0
    assert _of_group(tmp_path / "none") == 0.0
