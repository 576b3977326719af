"""HDFS where its client is not installed."""

from __future__ import annotations

import sys

import pytest

from penstock.errors import MissingError
from penstock.storage.hdfs import client_of
from penstock.storage.stores import SHORT


def test_hdfs_without_the_extra_is_missing_with_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(MissingError) as raised:
        client_of("nobody:8020", (), SHORT)
    assert (raised.value.code, raised.value.hint) == ("HDFS_CLIENT_MISSING", "pip install 'penstock[hdfs]'")
