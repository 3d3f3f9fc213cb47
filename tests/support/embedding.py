"""Users of an embedded server, and whether it runs."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import redis

from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.client.embedded import EmbeddedServer
from support.polling import until

#: A crawler: attaches, tells its parent, and waits to be killed or told to go on.
USER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
from scrapy_bloom.bloom.client.connect import connect
connection = connect("embedded:" + sys.argv[1])
print(connection.client.info("server")["process_id"], flush=True)
sys.stdin.readline()
if sys.argv[2:] != ["forget"]:
    connection.close()
"""


def client_of(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path))


def pid_of(server: EmbeddedServer) -> int:
    with closing(client_of(server)) as client:
        return int(client.info("server")["process_id"])


def kill(server: EmbeddedServer) -> None:
    os.kill(pid := pid_of(server), signal.SIGKILL)
    assert gone(pid)


def gone(pid: int) -> bool:
    return until(lambda: not alive(pid), "the process ends")


def alive(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def start_user(data_dir: Path, *args: str) -> tuple["subprocess.Popen[str]", int]:
    """Start a process that attaches; return it and the server's process id."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", USER, str(data_dir), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def finish(process: "subprocess.Popen[str]") -> int:
    process.communicate("\n")
    return process.returncode


def come_and_go(data_dir: str, name: int, rounds: int) -> None:
    """Attach, write a bit and detach, so many times."""
    for number in range(rounds):
        with closing(connect("embedded:", data_dir=data_dir)) as connection:
            connection.client.setbit("bits", name * rounds + number, 1)
