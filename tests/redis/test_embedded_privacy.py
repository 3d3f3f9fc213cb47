"""``embedded:``: other users of the machine cannot reach the server, nor read what it keeps."""

import os
from pathlib import Path

import pytest
import redis

from scrapy_bloom.bloom.client.embedded import EmbeddedServer, is_free
from scrapy_bloom.bloom.errors import StorageError

pytestmark = pytest.mark.usefixtures("own_tmp")


def test_nothing_in_the_directory_is_for_other_users(data_dir: Path) -> None:
    before = os.umask(0)
    try:
        server = EmbeddedServer.attach(data_dir)
        with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
            client.set("seeds", "secret")
        modes = {path: path.stat().st_mode & 0o077 for path in [data_dir, *data_dir.rglob("*")]}
        server.detach()
    finally:
        os.umask(before)
    assert any("appendonly" in str(path) for path in modes)
    assert not any(modes.values()), modes


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
    elif trouble == "symlink":
        (own_tmp / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(own_tmp / "elsewhere", target_is_directory=True)
    else:
        directory.write_text("")
    with pytest.raises(StorageError, match=r"socket|0700"):
        EmbeddedServer.attach(data_dir)
    assert is_free(data_dir / "server.lock")
