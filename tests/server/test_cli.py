"""``scrapy bloom`` in a project and outside: usage, settings, errors, and ``clear``."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import scrapy
from redis import Redis, RedisCluster
from scrapy import Request, Spider
from support.cli import (
    KEY,
    SECRET,
    URLS,
    Call,
    Done,
    Own,
    Shop,
    claim,
    fail,
    fingerprints,
    give,
    unchanged,
)
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.claims import Claims, NewClaim
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.cli import output
from scrapy_bloom.cli.command import COMMANDS

URL = URLS[0]


class Broken:
    def fingerprint(self, request: Request) -> bytes:
        raise LookupError("a bug")


class Bare(Spider):
    name = "shop"


# -- usage --


def test_without_a_subcommand_all_are_listed(call: Call) -> None:
    done = call()
    assert (done.code, len(COMMANDS)) == (0, 9)
    assert re.findall(r"^    (\w+)  +\S", done.out, re.MULTILINE) == [*COMMANDS]
    assert all(f"  {code}  " in done.out for code in (0, 1, 2))


SCRAPY_REDIS = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.migrate.ScrapyRedisFingerprinter"}
WRONG: list[Any] = [
    ("inf", {}, "'inf' isn't a subcommand. Did you mean info?"),
    ("xyzzy", {}, "'xyzzy' isn't a subcommand. Choose one of info, check, pending"),
    ("A=b info", {}, "and write options after it"),
    ("info surplus", {}, "'surplus' isn't an argument. See scrapy bloom info -h"),
    ("info --spider x", {}, "isn't a spider of the project. Choose one of shop"),
    ("info -s BLOOM_CAPCITY=5", {}, "BLOOM_CAPACITY"),
    ("check", {}, "the following arguments are required: URL. See scrapy bloom check -h"),
    ("info --pidfile /nowhere/x", {}, "No such file or directory: '/nowhere/x'"),
    ("check -", {}, "There are no URLs. Give some, or - to read them from stdin"),
    ("check nonsense", {}, "'nonsense' isn't the URL of a page. Write it in full"),
    (f"check http://u:{SECRET}@", {}, "'http://***@' isn't the URL of a page"),
    ("pending --limit x", {}, "argument --limit: invalid int value: 'x'"),
    ("recrawl", {}, "There are no URLs. Give some, - to read them from stdin, or --failed"),
    ("recrawl --failed --callback parse", {}, "--callback needs URLs, as pages that failed keep"),
    (f"recrawl {URL} --callback oops", {}, "--callback 'oops' isn't a method of spider 'shop'"),
    (f"recrawl {URL}", {"spiders": (Bare,)}, "spider 'shop' has no method parse. Name the method"),
    (f"recrawl {URL}", {"BLOOM_REMEMBER": "scheduled"}, 'recrawl needs BLOOM_REMEMBER = "crawled"'),
    (f"recrawl {URL}", {"BLOOM_RECRAWL_RULES": [("/0", "run")]}, "has the window 'run', so each"),
    ("plan --urls many", {}, "BLOOM_CAPACITY = 'many' can't be used. Use a whole number from 1"),
    ("plan --error-rate 2", {}, "BLOOM_ERROR_RATE = '2' can't be used. Use a number from"),
    ("report", {}, "the following arguments are required: FILE"),
    ("report /nowhere/x.html", {}, "'/nowhere/x.html' can't be opened (No such file"),
    ("migrate", {}, "one of the arguments --from-set --from-seen --from-urls is required"),
    ("migrate --from-set a --from-seen b", {}, "argument --from-seen: not allowed with argument"),
    ("migrate --from-set a", {}, "REQUEST_FINGERPRINTER_CLASS"),
    ("migrate --from-set a", SCRAPY_REDIS, "There is no SET 'a' on"),
    ("migrate --from-seen nowhere", {}, "'nowhere' can't be opened (No such file"),
    ("clear", {}, "Nobody can answer, because this isn't a terminal. Add --yes"),
    ("clear --pending --window default", {}, "argument --window: not allowed with argument --pend"),
    ("clear --window typo -y", {}, "isn't a window of this filter. Choose one of default"),
    ("check " + URL, {"REQUEST_FINGERPRINTER_CLASS": Broken}, "LookupError: a bug"),
    ("info", {"BLOOM_REDIS_URL": f"redis://u:{SECRET}@127.0.0.1:1"}, "redis://127.0.0.1:1"),
    pytest.param(
        "info",
        {"SPIDER_MODULES": ["nowhere_at_all"]},
        "No module named 'nowhere_at_all'",
        marks=pytest.mark.skipif(scrapy.version_info < (2, 14), reason="Scrapy itself loads them"),
    ),
]


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The standard input is no terminal."""
    with Path(os.devnull).open() as null:
        monkeypatch.setattr(sys, "stdin", null)
        yield


@pytest.mark.usefixtures("bloom", "no_terminal")
@pytest.mark.parametrize(("arguments", "settings", "message"), WRONG)
def test_what_is_wrong_is_told_in_one_line(
    shop: Call, client: Redis, arguments: str, settings: dict[str, Any], message: str
) -> None:
    with unchanged(client):
        done = shop(*arguments.split(), **settings)
    done.refused("scrapy bloom: ", message)
    assert len(done.err.splitlines()) == 1
    assert SECRET not in done.err


@pytest.mark.parametrize(
    "arguments",
    ["info", f"check {URL}", "pending", f"recrawl {URL}", "clear --yes", "report x.html"],
)
def test_where_there_is_no_filter(shop: Call, client: Redis, arguments: str) -> None:
    done = shop(*arguments.split())
    done.refused(f"There is no filter '{KEY}' on unix://", code=1)
    assert len(done.err.splitlines()) == 1
    assert client.keys() == []


def test_an_interruption_is_told(shop: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BloomFilter, "run", Mock(side_effect=KeyboardInterrupt))
    shop("info").refused("scrapy bloom: interrupted\n")


# -- which filter --


def test_outside_of_a_project_the_key_names_the_filter(shop: Call, client: Redis) -> None:
    """And windows and spiders are those of the last crawl."""
    bloom = BloomFilter(client, "special", window="5 months")
    claim(bloom, URLS[:2])
    bloom.extend(fingerprints(URLS[2:4]))

    def outside(*arguments: str) -> Done:
        return shop(*arguments, "--key", "special", "--json", spiders=(), SPIDER_MODULES=[])

    info = outside("info").json
    assert info["rows"][0]["forgotten"] not in ("", "never")
    assert info["filters"][0]["pending"] == 2
    assert {row["url"] for row in outside("pending").json["rows"]} == {*URLS[:2]}
    (row,) = outside("check", URLS[2]).json["rows"]
    assert (row["state"], row["until"]) == ("remembered", info["rows"][0]["forgotten"])
    outside("recrawl", URLS[2]).refused("recrawl needs the spider's code. Run it in your Scrapy")


def test_several_spiders(call: Call, client: Redis, server: Server) -> None:
    project = {"spiders": (Shop, Own), "BLOOM_REDIS_URL": server.unix_url}
    BloomFilter(client, "special").open()
    BloomFilter(client, KEY).add(fingerprints([URL])[0])
    for arguments in (f"check {URL}", "pending", f"recrawl {URL}", "clear --yes"):
        done = call(*arguments.split(), **project)
        done.refused("There are several spiders. Choose one of own, shop with --spider")
    info = call("info", "--json", **project).json
    assert [one["filter"] for one in info["filters"]] == ["special", KEY]
    assert call("check", URL, "--spider", "shop", **project).code == 0
    # A filter that they share is shown once.
    shared = call("info", "--json", "--key", KEY, **project).json
    assert [one["filter"] for one in shared["filters"]] == [KEY]
    client.flushall()
    assert call("info", **project).code == 1


def test_a_filter_on_a_cluster(call: Call, cluster: RedisCluster, nodes: list[Server]) -> None:
    bloom = BloomFilter(cluster, KEY, blocks=8)
    bloom.extend(fingerprints(URLS[:10]))
    claim(bloom, URLS[10:15])
    BloomFilter(cluster, "other").open()
    cluster.sadd("set", "aa" * 20)
    url = f"redis+cluster://127.0.0.1:{nodes[1].port}"
    project = {"spiders": (Shop,), "BLOOM_REDIS_URL": url}

    def found(*arguments: str, **settings: Any) -> Any:
        return call(*arguments, "--json", **project, **settings).json

    assert call("check", *URLS[:10], **project).code == 0
    assert [one["filter"] for one in found("info", "--all")["filters"]] == ["other", KEY]
    assert found("pending")["pending"] == 5
    assert found("recrawl", *URLS[:10])["ready"] == 10
    assert found("clear", "--yes")["forgotten"] == 10
    assert found("migrate", "--from-set", "set", **SCRAPY_REDIS)["new"] == 1
    assert found("info")["rows"][0]["urls"] == 1


# -- output --


def test_a_reader_that_ends_early_is_no_error(
    client: Redis, server: Server, tmp_path: Path
) -> None:
    claim(BloomFilter(client, KEY), [f"https://example.com/{place}" for place in range(3_000)])
    where = f"--key {KEY} -s BLOOM_REDIS_URL={server.url}"
    command = f"set -o pipefail; {sys.executable} -m scrapy bloom pending --limit 0 {where}"
    shell = ["bash", "-c", f"{command} | head -n 1"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["state", "since", "attempts", "url"], "")


def at_terminal(monkeypatch: pytest.MonkeyPatch, answer: str = "") -> None:
    """Take the standard streams for a terminal of 60 columns, at which somebody answers."""
    give(monkeypatch, answer.encode())
    monkeypatch.setenv("COLUMNS", "60")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def test_at_a_terminal_tables_fit_and_clear_asks(
    shop: Call, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://example.com/{'long/' * 20}"
    bloom.add(fingerprints([url])[0])
    at_terminal(monkeypatch)
    shown = re.sub("\x1b\\[[0-9;]*m", "", shop("check", url).out)
    table = shown.split(KEY)[0].splitlines()
    assert max(map(len, table)) <= 60
    assert len(table) > 3, "the URL is folded"
    for answer, left in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        at_terminal(monkeypatch, answer)
        assert f"Forget 1 URL of {KEY} on unix://" in shop("clear").err
        assert bloom.info().count == left


@pytest.mark.parametrize(
    ("time", "text"), [(0, None), (1_795_829_715, "2026-11-28 01:35"), (10**12, "9999-12-31 23:59")]
)
def test_times_have_one_form(time: int, text: str | None) -> None:
    assert output.minute(time) == text


# -- clear --


def test_clear_forgets_all_or_one_window(shop: Call, client: Redis) -> None:
    """Seeds, sizes and pending requests of another window stay."""
    day = {"1-day": Schedule.of("1 day")}
    bloom = BloomFilter(client, KEY, window="2 months", windows=day, blocks=3)
    settings = {"BLOOM_RECRAWL_AFTER": "2 months", "BLOOM_RECRAWL_RULES": [("/1", "1 day")]}
    bloom.extend(fingerprints(URLS[:1]))
    keys = [("1-day", item) for item in fingerprints(URLS[1:3])]
    bloom.run(bloom.session.add(keys))
    claim(bloom, URLS[3:4])
    bloom.run(note_crawl(bloom.session, "another"))
    spec = bloom.open()
    done = shop("clear", "--window", "1-day", "--yes", **settings)
    assert done.out.endswith(": 2 URLs in the window '1-day' forgotten\n")
    assert [
        row["state"] for row in shop("check", *URLS[:4], "--json", **settings).json["rows"]
    ] == [*("remembered", "not remembered", "not remembered", "pending")]
    done = shop("clear", "-y", **settings)
    assert done.out.endswith(": 1 URL and 1 pending request forgotten\n")
    assert shop("info", "--json", **settings).json["filters"][0]["pending"] == 0
    assert (bloom.run(bloom.session.find()), bloom.info().count) == (spec, 0)


def test_clear_may_drop_what_is_pending_for_one_spider_and_forget_nothing(
    call: Call, bloom: BloomFilter, client: Redis, server: Server
) -> None:
    bloom.extend(fingerprints(URLS[:2]))
    claim(bloom, URLS[2:5])
    fail(bloom, URLS[5:6])
    bloom.run(note_crawl(bloom.session, "own"))
    key = ("default", fingerprints(URLS[6:7])[0])
    bloom.run(Claims(bloom.session, "own").claim([NewClaim(key, "-", "")], "w2"))
    project = {"spiders": (Shop, Own), "BLOOM_REDIS_URL": server.unix_url}
    with unchanged(client, "*:default:*"), unchanged(client, "*:claims:own"):
        done = call("clear", "--pending", "--yes", "--spider", "shop", **project)
    assert done.out.endswith(": 4 pending requests forgotten\n")
    assert client.keys("*:claims:*") == client.keys("*:claims:own") != []
    assert bloom.info().count == 2


def test_no_command_shows_seeds(shop: Call, bloom: BloomFilter) -> None:
    seeds = bloom.open().seeds
    for command in ("info --json", f"check {URL} --json", "pending --json", "clear --yes --json"):
        done = shop(*command.split())
        assert json.loads(done.out)
        assert not any(str(seed) in done.out for seed in seeds)
