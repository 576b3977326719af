"""Whether a master listens, before Spark is started for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.errors import MissingError
from penstock.spark.placement import Placement, check_master


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which nobody can listen, and nobody does."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,512]", "yarn", "k8s://https://127.0.0.1:1"])
def test_check_master_asks_nobody_but_a_standalone_one(master: str) -> None:
    check_master(Placement(master))


def test_check_master_one_that_listens_of_several_is_enough(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(Placement(f"spark://127.0.0.1:{taken},127.0.0.1:{server.getsockname()[1]}"))


@pytest.mark.parametrize("words", ["127.0.0.1:{taken}", "127.0.0.1:{taken},[::1]:{taken}"])
def test_check_master_nobody_listens_names_every_address_and_why(taken: int, words: str) -> None:
    addresses = words.format(taken=taken)
    with pytest.raises(MissingError) as raised:
        check_master(Placement(f"spark://{addresses}"))
    assert raised.value.code == "MASTER_UNREACHABLE"
    assert list(raised.value.context) == addresses.split(",")
    assert raised.value.context[f"127.0.0.1:{taken}"] == "connection refused"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":7077", "127.0.0.1:http", ""])
def test_check_master_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(MissingError) as raised:
        check_master(Placement(f"spark://{address}"))
    assert raised.value.context == {address: "that is not HOST:PORT"}


def test_check_master_one_that_comes_back_is_waited_for_and_told(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.placement._NOTICE_AFTER_SECONDS", 0.0)
    said: list[str] = []
    with socket.socket() as late:

        def tell(text: str) -> None:
            said.append(text)
            late.listen()

        late.bind(("127.0.0.1", 0))
        check_master(Placement(f"spark://127.0.0.1:{late.getsockname()[1]}"), 30.0, tell)
    assert len(said) == 1
    assert "connection refused" in said[0]
