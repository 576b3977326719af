"""Links over loopback in a network of their own: cut they lose, late they lose nothing, and then all is as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.network import why_not

CODE = """
import socket, threading, time
from tests.soak.links import cut, late, prepare_network

prepare_network()
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]

def answer():
    asked, _ = server.accept()
    while said := asked.recv(65_536):
        asked.sendall(said)

threading.Thread(target=answer, daemon=True).start()
link = socket.create_connection(("127.0.0.1", port))

def ask():
    began = time.monotonic()
    link.sendall(b"." * 20_000)
    left = 20_000
    while left:
        left -= len(link.recv(left))
    return time.monotonic() - began

print(ask())
with late([port], 0.5):
    print(ask())
print(ask())
link.settimeout(1)
with cut([port], both=False):
    try:
        print(ask())
    except TimeoutError:
        print(-1)
"""


def test_links_that_are_late_arrive_and_links_that_are_cut_do_not() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    command = ["unshare", "--net", sys.executable, "-c", CODE]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert told.returncode == 0, told.stderr
    before, slow, after, cut = map(float, told.stdout.split())
    assert slow >= 1.0 and slow > max(before, after) and cut == -1
