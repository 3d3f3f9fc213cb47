"""``scrapy bloom watch``."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fingerprints
from support.outages import killed
from support.paths import PROJECT
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.monitor import _rate


@contextmanager
def watching(url: str, *arguments: str, **streams: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run ``scrapy bloom watch`` in a process of its own; end it by Ctrl-C."""
    command = ["-m", "scrapy", "bloom", "watch", "--every", "0.2", "--key", KEY, *arguments]
    settings = ["-s", f"BLOOM_REDIS_URL={url}", "-s", "BLOOM_TIMEOUT=1"]
    process = subprocess.Popen(
        [sys.executable, *command, *settings],
        cwd=PROJECT,
        text=True,
        # A background job of a script ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams},
    )
    with process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_it_looks_as_often_as_told_and_changes_nothing(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months")
    bloom.extend(fingerprints(URLS))
    before = everything(client)
    done = shop("watch", "--times", "2", "--every", "0.1")
    assert everything(client) == before
    assert (done.code, done.err) == (0, "")
    first, second = done.out.strip().split("\n\n")
    assert first.splitlines()[1].split()[:2] == ["URLs", "new"]
    urls, rate, *_, key = first.splitlines()[2].split()
    assert (urls, rate, key) == ("20", "-", KEY)
    assert second.splitlines()[2].split()[:2] == ["20", "+0"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--every", "never"), "--every is a time from 0.1 to 3600 seconds"),
        (("--every", "0"), "--every is a time from 0.1 to 3600 seconds"),
        (("--times", "0"), "--times"),
    ],
)
def test_bad_options(shop: Call, arguments: tuple[str, ...], says: str) -> None:
    done = shop("watch", *arguments)
    assert done.code == 2
    assert says in done.err


def test_a_server_that_goes_away_is_shown_and_found_again(any_binary: str) -> None:
    with Server(any_binary) as server, watching(server.url, "--json") as process:
        with server.client() as client:
            BloomFilter(client, KEY).extend(fingerprints(URLS))
        assert process.stdout is not None
        found = map(json.loads, process.stdout)
        next(look for look in found if look["filters"] and look["filters"][0]["urls"] == 20)
        with killed(server):
            assert "is not there" in next(look for look in found if look["error"])["error"]
        next(look for look in found if look["filters"])


def test_on_a_terminal_it_stays_in_one_place(server: Server, client: redis.Redis) -> None:
    pytest.importorskip("rich")
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with watching(server.url, stdout=theirs, stderr=theirs, env=environment):
        seen = b""
        while seen.count(KEY.encode()) < 2:
            seen += os.read(ours, 4096)
    os.close(theirs)
    os.close(ours)
    assert b"\x1b[" in seen.split(KEY.encode())[1], "the cursor moves back"


def test_rates_are_of_filters_that_were_there_before() -> None:
    before: dict[str, tuple[float, int]] = {}

    def rates(at: float, **urls: int | None) -> list[float | None]:
        filters: list[dict[str, Any]] = [{"key": key, "urls": n} for key, n in urls.items()]
        _rate(filters, at, before)
        return [one.get("urls_a_second") for one in filters]

    assert rates(10.0, a=100, b=None) == [None, None]
    assert rates(12.0, a=150, b=5, c=7) == [25.0, None, None]
    assert rates(14.0, a=None, b=5) == [None, 0.0]
    assert rates(14.0, a=150, b=9) == [None, None]
