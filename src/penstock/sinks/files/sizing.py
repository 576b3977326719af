"""How large files should be, and which of them are too small."""

from __future__ import annotations

from collections.abc import Sequence

TARGET_FILE_BYTES = 128 * 1024 * 1024
"""How large a data file may grow, where the pipeline file does not say."""

SMALLEST_TARGET = 1024 * 1024
"""What a compaction that never has the table for long joins files to at least."""


def worth_joining(sizes: Sequence[int], target: int) -> int:
    """How many files of one partition are so small that two of them fit into one; none where it is but one."""
    small = sum(1 for size in sizes if size < target // 2)
    return small if small > 1 else 0
