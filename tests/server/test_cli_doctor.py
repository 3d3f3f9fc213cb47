"""``scrapy bloom doctor``: each of its checks, and what it advises."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from redis import Redis
from scrapy.settings import BaseSettings
from scrapy.utils.test import get_crawler
from support.cli import KEY, Call, Own, Shop, unchanged
from support.outages import admin
from support.replicas import wait_for_link, with_replica
from support.servers import Server

from scrapy_bloom import Addon, BloomFilter
from scrapy_bloom.cli import doctor
from scrapy_bloom.cli.doctor import CHECKS

OURS = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
NAMES = [check.__name__ for check in CHECKS]


class Scheduled(Own):
    name = "scheduled"
    custom_settings: ClassVar = {"BLOOM_REMEMBER": "scheduled", "JOBDIR": "job"}  # type: ignore[misc]


def states(done: Any) -> dict[str, str]:
    return {row["check"]: row["state"] for row in done.json["rows"]}


@pytest.fixture
def healthy(client: Redis) -> Any:
    """The server writes to its disk."""
    client.config_set("appendonly", "yes")
    yield
    client.config_set("appendonly", "no")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 0)


@pytest.mark.usefixtures("healthy")
def test_all_checks_may_be_fine(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    done = shop("doctor", "--json", **OURS)
    assert len(NAMES) == 11
    assert [row["check"] for row in done.json["rows"]] == NAMES
    assert {*states(done).values()} == {"ok"}, done.out
    assert (done.code, done.json["problems"]) == (0, 0)
    assert shop("doctor", **OURS).out.endswith("0 problems found\n")


@pytest.mark.usefixtures("healthy")
def test_it_makes_no_file_in_a_jobdir(shop: Call, tmp_path: Path) -> None:
    (folder := tmp_path / "job").mkdir()
    assert states(shop("doctor", "--json", **OURS, JOBDIR=f"{folder}"))["scheduler"] == "ok"
    assert not list(folder.iterdir())


SELECT = "twisted.internet.selectreactor.SelectReactor"


def delivered(**feed: Any) -> dict[str, Any]:
    """Return settings with a feed. What else may be wrong with one: crawl/test_delivery.py."""
    return {"BLOOM_REMEMBER": "delivered", "FEEDS": {"items": feed} if feed else {}}


PROBLEMS: list[tuple[str, dict[str, Any], str]] = [
    ("settings", {"BLOOM_CAPCITY": 5}, "Did you mean BLOOM_CAPACITY?"),
    ("settings", {"BLOOM_BLOCKS": 7}, "Remove BLOOM_BLOCKS, or choose another BLOOM_KEY"),
    ("dupefilter", {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}, "isn't used"),
    ("dupefilter", {"DUPEFILTER_CLASS": "nowhere.Filter"}, "No module named 'nowhere'"),
    ("dupefilter", {"BLOOM_ENABLED": False}, "turns the filter off"),
    ("scheduler", {"BLOOM_REMEMBER": "scheduled"}, 'Set it to "crawled", or use JOBDIR'),
    ("scheduler", {"SCHEDULER_FLUSH_ON_START": True}, "forgets all when a worker starts"),
    ("scheduler", {"SCHEDULER": "nowhere.Scheduler"}, "No module named 'nowhere'"),
    ("reactor", {"TWISTED_REACTOR": SELECT}, "Remove TWISTED_REACTOR, because Scrapy's default"),
    ("feeds", delivered(format="jsonlines"), "FEED_EXPORT_BATCH_ITEM_COUNT"),
    ("feeds", delivered(format="unknown"), "Scrapy has disabled FEEDS"),
    ("memory", {"BLOOM_CAPACITY": 10**12, "BLOOM_BLOCKS": 16_384}, "or lower BLOOM_CAPACITY"),
]


@pytest.mark.usefixtures("healthy", "bloom")
@pytest.mark.parametrize(("check", "settings", "advice"), PROBLEMS)
def test_what_is_wrong_comes_with_advice(
    shop: Call, client: Redis, check: str, settings: dict[str, Any], advice: str
) -> None:
    if check == "memory":
        client.flushall()  # the filter there has other blocks
    done = shop("doctor", "--json", **{**OURS, **settings})
    problems = {row["check"]: row["finding"] for row in done.json["rows"] if row["state"] != "ok"}
    assert check in problems, done.out
    assert advice in problems[check]
    assert done.code == 1


class OtherAddon:
    def update_settings(self, settings: BaseSettings) -> None:
        settings.set("DUPEFILTER_CLASS", "scrapy.dupefilters.RFPDupeFilter", "addon")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("others", [[], [OtherAddon]])
def test_the_filter_is_used_with_its_addon_unless_another_replaces_it(
    shop: Call, others: list[type]
) -> None:
    done = shop("doctor", "--json", ADDONS=dict.fromkeys([Addon, *others], 500))
    assert states(done)["dupefilter"] == ("PROBLEM" if others else "ok")


def test_clocks_are_compared_at_the_time_at_which_the_server_answered() -> None:
    """Other spiders' servers may be asked for long before the checks."""
    facts = doctor.Facts(get_crawler(), nodes=[FINE], clock=NOW + 2)
    text = "the clocks of server and crawler differ by 2.0 seconds"
    assert doctor.examine(doctor.clock, facts) == ("ok", text)


@pytest.mark.usefixtures("healthy")
def test_feeds_that_no_page_waits_for_are_fine_but_named(shop: Call) -> None:
    done = shop("doctor", "--json", **OURS, FEEDS={"items.jsonl": {}}).json["rows"]
    (row,) = [row for row in done if row["check"] == "feeds"]
    assert row["state"] == "ok"
    assert "a run that is killed may lose items" in row["finding"]
    assert 'With BLOOM_REMEMBER = "delivered", the next run crawls' in row["finding"]


@pytest.mark.usefixtures("healthy")
def test_delivered_without_feeds_is_fine(shop: Call) -> None:
    assert shop("doctor", **OURS, **delivered()).code == 0


@pytest.mark.usefixtures("healthy")
def test_a_server_that_evicts_or_keeps_nothing(shop: Call, client: Redis) -> None:
    """Without a window, no key has an expiry, so that volatile policies evict none."""
    client.config_set("maxmemory-policy", "volatile-lru")
    assert states(shop("doctor", "--json", **OURS))["eviction"] == "ok"
    window = {**OURS, "BLOOM_RECRAWL_AFTER": "2 months"}
    assert states(shop("doctor", "--json", **window))["eviction"] == "PROBLEM"
    rule = {**OURS, "BLOOM_RECRAWL_RULES": [["/list/", "1 day"]]}
    assert states(shop("doctor", "--json", **rule))["eviction"] == "PROBLEM"
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    client.config_set("maxmemory", 16 << 20)
    done = shop("doctor", **OURS)
    assert [line.split()[1] for line in done.out.splitlines() if "PROBLEM" in line] == [
        *("persistence", "eviction", "memory")
    ]
    assert done.out.endswith("3 problems found\n")


NOW = 1_795_829_715
FINE = {
    "server_time_usec": 1_000_000 * NOW,
    "rdb_last_bgsave_status": "ok",
    "aof_last_write_status": "ok",
    "aof_enabled": 1,
    "role": "master",
}


@pytest.mark.parametrize(
    ("check", "other", "finding"),
    [
        (doctor.clock, {"server_time_usec": 1_000_000 * (NOW - 3_600)}, "differ by"),
        (doctor.persistence, {"aof_last_write_status": "err"}, "write to its disk"),
        (doctor.persistence, {"rdb_last_bgsave_status": "err"}, "write to its disk"),
        (doctor.persistence, {"aof_enabled": 0}, "appendonly is off"),
        (doctor.server, {"role": "slave"}, "is a read-only replica"),
    ],
)
def test_each_node_of_a_cluster_is_checked(
    check: Callable[[doctor.Facts], str], other: dict[str, Any], finding: str
) -> None:
    for nodes in ([FINE | other], [FINE, FINE | other]):
        facts = doctor.Facts(get_crawler(), nodes=nodes, clock=NOW)
        state, text = doctor.examine(check, facts)
        assert state == "PROBLEM"
        assert re.search(finding, text)


@contextmanager
def limited(server: Server, *rules: str) -> Iterator[dict[str, Any]]:
    """The server has a user with few permissions; yield settings that use it."""
    with admin(server, "ACL", "DELUSER", "few") as client:
        client.execute_command("ACL", "SETUSER", "few", "reset", "on", "nopass", *rules)
        url = server.url.replace("redis://", "redis://few:x@")
        yield {**OURS, "BLOOM_REDIS_URL": url}


def test_forbidden_commands_are_named(shop: Call, client: Redis, server: Server) -> None:
    rules = f"~{{{KEY}:*}}:*", "+@all", "-zadd", "-hscan", "-wait"
    with limited(server, *rules) as own:
        assert "Use ACL SETUSER to add +hscan +zadd\n" in shop("doctor", **own).out
        assert "add +hscan +zadd +wait\n" in shop("doctor", **own, BLOOM_WAIT_REPLICAS=1).out


def test_a_server_that_is_not_there_or_hides_its_facts(
    shop: Call, client: Redis, server: Server
) -> None:
    done = shop("doctor", "--json", **OURS, BLOOM_REDIS_URL="redis://127.0.0.1:1")
    assert [states(done)[name] for name in NAMES[5:]] == ["PROBLEM", *["?"] * 5]
    assert "Start it, or correct BLOOM_REDIS_URL" in done.out
    with limited(server, "~*", "+@all", "-info") as own:
        done = shop("doctor", "--json", **own)
    assert [states(done)[name] for name in NAMES[5:]] == ["ok", "PROBLEM", *["?"] * 4]
    assert "the server doesn't tell it" in done.out
    assert "Use ACL SETUSER to add +info" in done.out


def test_a_replica_answers_all_checks_and_is_named_as_one(shop: Call, any_binary: str) -> None:
    with with_replica(any_binary) as (primary, replica):
        with primary.client() as client:
            BloomFilter(client, KEY).extend(["a", "b"])
        wait_for_link(replica, primary)
        with replica.client() as client, unchanged(client):
            done = shop("doctor", "--json", **OURS, BLOOM_REDIS_URL=replica.url)
    found = {row["check"]: row["finding"] for row in done.json["rows"]}
    assert found["server"] == ("the server is a read-only replica. Use the address of its primary")
    problems = {name for name, state in states(done).items() if state != "ok"}
    assert problems == {"server", "persistence"}
    assert done.code == 1


def test_spiders_are_named_where_they_differ_and_outside_of_a_project_is_less(
    call: Call, client: Redis, server: Server
) -> None:
    where = {**OURS, "BLOOM_REDIS_URL": server.unix_url}
    rows = call("doctor", "--json", spiders=(Shop, Scheduled), **where).json["rows"]
    shown = {(row["check"], row["spider"]) for row in rows}
    assert {("scheduler", "shop"), ("scheduler", "scheduled"), ("reactor", None)} <= shown
    done = call("doctor", "--json", SPIDER_MODULES=[], BLOOM_REDIS_URL=server.unix_url)
    assert [row["check"] for row in done.json["rows"]] == [NAMES[0], *NAMES[5:]]
