from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from penstock.devstack.processes import free_ports, is_free, refuse_taken
from penstock.errors import MissingError


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_taken_names_the_port_its_holder_and_the_way_out(listener: int) -> None:
    with pytest.raises(MissingError) as caught:
        refuse_taken(listener)
    assert caught.value.code == "PORT_TAKEN"
    assert str(listener) in caught.value.summary
    assert f"(process {os.getpid()})" in caught.value.context["held by"]
    assert caught.value.hint is not None
    assert "--port" in caught.value.hint


def test_port_of_the_registry_taken_names_its_own_option(listener: int) -> None:
    with pytest.raises(MissingError) as caught:
        refuse_taken(listener, "the schema registry", "--registry-port")
    assert caught.value.summary == f"starting the schema registry: port {listener} is taken"
    assert caught.value.hint is not None
    assert "--registry-port" in caught.value.hint


def test_port_taken_on_all_addresses_is_not_free() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_free_ports_are_different_free_and_none_of_the_taken() -> None:
    taken = range(20000, 29990)
    ports = free_ports(3, taken=taken)
    assert len(set(ports)) == 3
    assert all(port not in taken and is_free(port) for port in ports)
