"""Files that filters are saved to: whole or not at all, and for their owner only."""

import io
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.bloom.errors import ArchiveError, ConfigurationError
from scrapy_bloom.bloom.extras.file import reading, writing


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "filter"
    for before in (None, b"before"):
        if before:
            path.write_bytes(before)
        with writing(str(path)) as file:
            file.write(b"half")
            file.flush()
            assert (path.read_bytes() if path.exists() else None) == before
        assert path.read_bytes() == b"half"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_file_that_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "filter"
    path.write_bytes(b"before")

    def fail() -> None:
        with writing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"before"


def test_a_pipe_and_an_open_file_are_used_as_they_are(tmp_path: Path) -> None:
    buffer = io.BytesIO(b"abc")
    with reading(buffer) as source, writing(buffer) as target:
        assert source is target is buffer
    assert not buffer.closed
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    with writing(path) as file:
        file.write(b"x")
    reader.join()
    assert got == [b"x"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    missing, text = tmp_path / "no" / "filter", "[Nn]o such file"
    with pytest.raises(ArchiveError, match=f"cannot write '.*filter': .*{text}"):
        writing(missing).__enter__()
    with pytest.raises(ArchiveError, match=f"cannot read '.*filter': .*{text}"):
        reading(missing).__enter__()
    with pytest.raises(ArchiveError, match="cannot read .*null byte"):
        reading("a\0b").__enter__()


def test_what_is_no_place_is_refused() -> None:
    place: Any
    for place in (None, b"path"):
        for use in (reading, writing):
            with pytest.raises(ConfigurationError, match="expected a path or a binary file; got "):
                use(place).__enter__()
