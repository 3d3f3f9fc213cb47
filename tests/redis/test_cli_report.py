"""``scrapy bloom report``, ``metrics``, ``watch``, ``export`` and ``import``: numbers and files."""

import io
import json
import os
import pty
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis import Redis
from support.cli import (
    KEY,
    SECRET,
    URLS,
    Call,
    claim,
    fail,
    fingerprints,
    give,
    register,
    unchanged,
)
from support.prometheus import Values, parse
from support.servers import Server, contents

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.cli import monitor
from scrapy_bloom.cli.monitor import GAUGES
from scrapy_bloom.cli.server import PAGE
from scrapy_bloom.crawl import workers


def report(shop: Call) -> tuple[str, dict[str, list[float]]]:
    """Return the page, and its numbers by their classes."""
    done = shop("report", "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    html, numbers = Path("page.html").read_text(), defaultdict[str, list[float]](list)
    for name, value in re.findall(r'<data class="(\w+)" value="(.*?)"', html):
        numbers[name].append(float(value))
    return html, numbers


def test_numbers_are_those_of_info(shop: Call, client: Redis) -> None:
    for run, items in ("a", fingerprints(URLS)), ("b", [b"x", b"y"]):
        BloomFilter(client, KEY, capacity=1000, window="3 runs", run=run).extend(items)
    with unchanged(client):
        _, numbers = report(shop)
    (document,) = shop("info", "--json").json["filters"]
    generations = document["generations"]
    assert len(generations) == 2
    document["fill_ratio"] = generations[0]["fill_ratio"]
    for name in ("error_rate", "error_bound", "claims"):
        assert numbers[name] == [document[name]]
    for name in ("count", "estimated_error_rate", "memory", "fill_ratio"):
        assert numbers[name] == [document[name], *(g[name] for g in generations)]
    for name in ("opened", "closes", "forgotten", "layers"):
        assert numbers[name] == [g[name] for g in generations]


def test_claims_workers_and_failed_and_gone_pages_are_shown(shop: Call, client: Redis) -> None:
    """How they are listed: unit/test_html_page.py."""
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    claim(bloom, register(bloom), ["1", "2", "3"], "")
    claim(bloom, "x", ["4"], "")
    fail(bloom, ["5"], 0, "")
    fail(bloom, [f"https://u:{SECRET}@example.com/{number}" for number in range(25)], 600)
    note = "1800000000 1800000100 2 !HTTP+404 https://example.com/gone"
    client.hset(Keys(KEY).missing(1), mapping={"ab": note, "ac": note.replace(" 2 ", " 1 ")})
    html, numbers = report(shop)
    names = ("claims", "failed", "due", "worker_claims", "elsewhere")
    assert [numbers[name] for name in names] == [[30], [26], [1], [3], [1]]
    for text in ("host-1:4711", "alive", "HTTP 503", "https://***@example.com/"):
        assert text in html
    assert SECRET not in html
    assert html.count(">https://example.com/gone<") == 1


def test_a_file_that_cannot_be_written(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    for options in (["--html", "no/such/page.html"], ["--html", "-", "--json"]):
        shop("report", *options).refused("--html", "name a file")


def of(values: Values, key: str = KEY, window: str = "default") -> dict[str, float]:
    """Return the values of a filter, by the short names of the gauges."""
    labels = (("key", key), ("window", window))
    prefix = "scrapy_bloom_filter_"
    return {name.removeprefix(prefix): v for (name, pairs), v in values.items() if pairs == labels}


@pytest.mark.each_server(others="slow")
def test_the_gauges_are_those_of_info_and_nothing_changes(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", blocks=4)
    bloom.extend(fingerprints(URLS))
    claim(bloom, workers.worker_id("shop"), ["a", "b", "c"], "")
    fail(bloom, [f"{number}" for number in range(PAGE + 40)], request="")
    for life in (20, 20, 0):
        register(bloom, life)
    with unchanged(client):
        text = shop("metrics", "--count-failed", BLOOM_CAPACITY=77).out
    (info,) = shop("info", "--json").json["filters"]
    active = info["generations"][0]
    assert of(parse(text)) == {
        "exists": 1,
        "capacity_urls": 1000,
        "urls": 20,
        "fill_ratio": active["fill_ratio"],
        "estimated_error_rate": info["estimated_error_rate"],
        "error_rate_limit": info["error_rate"],
        "generations": 1,
        "layers": active["layers"],
        "memory_bytes": info["memory"],
        "lost_blocks": 0,
        "next_rotation_timestamp_seconds": active["closes"],
        "claims": PAGE + 43,
        "failed_claims": PAGE + 40,
        "workers": 2,
    }


def test_each_window_has_its_own_values(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    BloomFilter(client, f"{KEY}:1-day", window="1 day").extend(fingerprints(URLS[:5]))
    rules = [("/a", "1 day"), ("/b", "1 hour")]
    found = parse(shop("metrics", BLOOM_RECRAWL_RULES=rules).out)
    # What is not counted, or never happens, has no value.
    assert set(of(found)) == {*GAUGES} - {"failed_claims", "next_rotation_timestamp_seconds"}
    assert (of(found)["urls"], of(found)["workers"], of(found)["claims"]) == (20, 0, 0)
    assert of(found, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(found, f"{KEY}:1-hour", "1-hour") == {"exists": 0}
    only = parse(shop("metrics", "--window", "1-day", BLOOM_RECRAWL_RULES=rules).out)
    assert of(only, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(only) == {}


def test_without_the_extra_it_says_what_to_install(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    shop("metrics").refused('pip install "scrapy-bloom[metrics]"')


# -- watch, export and import --


ITEMS = fingerprints(URLS)


@pytest.fixture
def full(client: Redis) -> BloomFilter:
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

        def shown() -> str:
            file.write("\0")
            file.flush()
            read = b""
            while not read.endswith(b"\0"):  # on a busy machine, it comes in parts
                read += os.read(ours, 100_000)
            return read.decode()

        yield shown
    os.close(ours)


# -- watch --


def test_it_looks_as_often_as_told_and_changes_nothing(
    shop: Call, client: Redis, full: BloomFilter
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
    shop: Call, full: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    with terminal(monkeypatch, "stdout") as shown:
        assert shop("watch", "--times", "2", "--every", "0.1").code == 0
        assert "\x1b[" in shown().split(KEY)[1], "the cursor moves back"


# -- export and import --


def test_a_filter_goes_to_a_file_and_back(
    shop: Call, client: Redis, full: BloomFilter, server: Server
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
    shop: Call, client: Redis, full: BloomFilter
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
    shop: Call, client: Redis, full: BloomFilter, monkeypatch: pytest.MonkeyPatch
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
