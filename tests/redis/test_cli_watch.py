"""``scrapy bloom watch``, ``export`` and ``import``: files, pipes and terminals."""

import io
import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, fingerprints, give, unchanged
from support.servers import Server, contents

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import monitor

ITEMS = fingerprints(URLS)


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    bloom = BloomFilter(client, KEY, capacity=1_000, blocks=3, window="3 days")
    bloom.extend(ITEMS)
    return bloom


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> Iterator[Callable[[], str]]:
    """Make a standard stream a terminal; yield what tells what was shown."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, stream, file)
        yield lambda: os.read(ours, 100_000).decode()
    os.close(ours)


# -- watch --


def test_it_looks_as_often_as_told_and_changes_nothing(
    shop: Call, client: Redis, bloom: BloomFilter
) -> None:
    with unchanged(client):
        done = shop("watch", "--times", "2", "--every", "0.1")
    assert (done.code, done.err) == (0, "")
    first, second = done.out.strip().split("\n\n")
    assert first.splitlines()[1].split()[:2] == ["URLs", "new"]
    urls, rate, *_, key = first.splitlines()[2].split()
    assert (urls, rate, key) == ("20", "-", KEY)
    assert second.splitlines()[2].split()[:2] == ["20", "+0"]
    for arguments, says in (
        (("--every", "0"), "--every is a time from 0.1 to 3600 seconds"),
        (("--times", "0"), "--times"),
    ):
        shop("watch", *arguments).refused(says)


def test_rates_and_a_server_that_goes_away_are_shown_until_ctrl_c(
    call: Call, any_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Server(any_binary) as server, server.client() as client:
        BloomFilter(client, KEY).extend(ITEMS)
        more = partial(BloomFilter(client, KEY).extend, ["a", "b", "c"])
        steps: Iterator[Callable[[], object]]
        steps = iter([more, server.kill, server.start, interrupt])
        clock = SimpleNamespace(monotonic=partial(next, count()), sleep=lambda _: next(steps)())
        monkeypatch.setattr(monitor, "time", clock)
        done = call("watch", "--json", "--key", KEY, BLOOM_REDIS_URL=server.url)
    assert done.code == 0
    first, second, down, up = map(json.loads, done.out.splitlines())
    looks = [look["filters"][0] for look in (first, second, up)]
    assert [one["urls_a_second"] for one in looks] == [None, 3.0, None]
    assert [one["urls"] for one in looks] == [20, 23, None]
    assert "is not there" in down["error"]


def test_on_a_terminal_it_stays_in_one_place(
    shop: Call, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    with terminal(monkeypatch, "stdout") as shown:
        assert shop("watch", "--times", "2", "--every", "0.1").code == 0
        assert "\x1b[" in shown().split(KEY)[1], "the cursor moves back"


# -- export and import --


def test_a_filter_goes_to_a_file_and_back(
    shop: Call, client: Redis, bloom: BloomFilter, server: Server
) -> None:
    where = f"{KEY} on {server.unix_url}:"
    with unchanged(client):
        done = shop("export", "filter")
        text = "the key 'shop:bloom' is in use, there is a filter under it"
        shop("import", "filter").refused(text, "scrapy bloom delete")
    size = f"{Path('filter').stat().st_size:,}"
    assert done.out.split() == f"{where} 20 URLs saved to filter, {size} bytes".split()
    client.flushall()
    done = shop("import", "filter")
    assert done.out.split() == f"{where} 20 URLs loaded from filter".split()
    assert BloomFilter(client, KEY).contains(ITEMS) == [True] * 20


def test_files_are_overwritten_by_force_only_and_memory_is_limited(
    shop: Call, client: Redis, bloom: BloomFilter
) -> None:
    path = Path("filter")
    path.write_text("precious")
    done = shop("export", "filter")
    done.refused("the file 'filter' is there already: --force overwrites it")
    assert path.read_text() == "precious"
    assert shop("export", "filter", "--force").code == 0
    client.flushall()
    shop("import", "filter", "--max-memory", "1000").refused("1,000 are allowed")
    assert shop("import", "filter", "--max-memory", "much").code == 2
    assert contents(client) == {}
    assert shop("import", "filter", "--max-memory", "0").code == 0
    assert BloomFilter(client, KEY).info().max_memory is None, "it is no setting of the filter"


def test_through_a_pipe_and_with_a_bar_on_a_terminal(
    shop: Call, client: Redis, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    data = io.BytesIO()
    pipe = io.TextIOWrapper(data)
    with terminal(monkeypatch, "stderr") as shown, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert shop("export", "-").code == 0
        assert "bytes of bitmaps saved" in shown()
        give(monkeypatch, data.getvalue())
        assert shop("import", "-", "--key", "else").code == 0
        assert "bytes of bitmaps loaded" in shown()
    assert BloomFilter(client, "else").contains(ITEMS) == [True] * 20
