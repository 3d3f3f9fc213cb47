"""The embedded server after crashes: adopted, restarted, given up, and losing nothing."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import aclosing, closing
from pathlib import Path

import pytest
from support.embedding import alive, client_of, gone, pid_of
from support.loops import in_loop

from scrapy_bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client import embedded
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.embedded import EmbeddedServer
from scrapy_bloom.bloom.errors import StorageError

pytestmark = pytest.mark.usefixtures("own_tmp")


def test_a_server_that_is_killed_has_all_but_the_last_writes(data_dir: Path) -> None:
    """A write that waits for a slow disk's fsync is acknowledged before it is in the log."""
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    with closing(client_of(server)) as client:
        for number in range(1_000):
            client.setbit("bits", number, 1)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert server.socket_path.exists()
    again = EmbeddedServer.attach(data_dir)
    with closing(client_of(again)) as client:
        assert 0 < client.bitcount("bits") == client.bitpos("bits", 0)
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
        own = connection.open_async()
        assert own is not None
        async with aclosing(own) as client:
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
            # Killed, it may have lost the last writes, which wait for a slow disk.
            bloom.add_many(["a", "b"])
            assert await other.add_many(["a", "b"]) == [False, False]
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
    assert time.monotonic() - started < 60
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


def test_a_server_out_of_reach_or_that_keeps_loading_is_reported(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it runs in another container, or its socket was deleted."""
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    hidden = server.socket_path.rename(server.socket_path.with_suffix(".hidden"))
    monkeypatch.setattr(embedded, "REACH_SECONDS", 0.1)
    with pytest.raises(StorageError, match=r"another container.*(?s:.*)server\.pid"):
        EmbeddedServer.attach(data_dir)
    assert alive(pid)
    hidden.rename(server.socket_path)
    monkeypatch.setattr(embedded, "_ask", lambda path, command: b"-LOADING\r\n")
    with pytest.raises(StorageError, match="still loading"):
        EmbeddedServer.attach(data_dir, start_timeout=0.1)
    monkeypatch.undo()
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
