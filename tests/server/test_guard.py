"""Tests that are killed leave no servers behind."""

import subprocess
import sys
from pathlib import Path

from support.paths import TESTS
from support.polling import until

SCRIPT = """
import sys
from support.servers import Server
server = Server(sys.argv[1])
print(server.process.pid, server.directory, flush=True)
sys.stdin.read()
"""


def test_a_server_ends_with_the_process_that_started_it(any_binary: str) -> None:
    command = [sys.executable, "-c", SCRIPT, any_binary]
    with subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        pid, directory = tests.stdout.readline().split()
        left = [Path("/proc", pid), Path(directory)]
        assert all(path.exists() for path in left)
        tests.kill()
    until(lambda: not any(path.exists() for path in left), "the server and its directory are gone")
