"""py4j's callback server in a process without descriptors: it dies, is found, and listens again."""

from __future__ import annotations

import subprocess
import sys

_PROCESS = """
import gc, os, resource, socket, threading, time
from types import SimpleNamespace
from py4j.java_gateway import CallbackServer, CallbackServerParameters, server_connection_started
from penstock.spark.internals import revive_callback_server

heard = []
def hear(sender, connection, **more):
    try:
        heard.append(connection.socket.getpeername()[1])
    except (OSError, AttributeError):  # it was closed, perhaps already by its thread
        heard.append(None)

server_connection_started.connect(hear)
parameters = CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
server = CallbackServer({}, None, callback_server_parameters=parameters)
server.start()
session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(_callback_server=server)))
assert not revive_callback_server(session)

deadline = time.monotonic() + 10
while True:
    try:
        socket.create_connection(("127.0.0.1", server.get_listening_port())).close()
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline

# The thread of that connection closes its socket: later on it would leave a descriptor.
while not heard or threading.active_count() > 2:
    assert time.monotonic() < deadline, threading.enumerate()
    time.sleep(0.01)
gc.collect()

caller = socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
caller.connect(("127.0.0.1", server.get_listening_port()))
server.thread.join(10)
assert not server.thread.is_alive(), "it lives without descriptors"

# Still none: it ends again, and is found again.
assert revive_callback_server(session)
server.thread.join(10)
for one in taken:
    os.close(one)
assert revive_callback_server(session)
deadline = time.monotonic() + 10
while caller.getsockname()[1] not in heard:
    assert time.monotonic() < deadline, "who waited is not heard"
    time.sleep(0.01)
assert not revive_callback_server(session)
server.shutdown()
assert not revive_callback_server(session)
print("heard", flush=True)
os._exit(0)
"""


def test_callback_server_that_died_without_descriptors_hears_who_waited() -> None:
    done = subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
