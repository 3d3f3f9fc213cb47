"""Re-crawl rules in lookups alone, in batches and in crawls, and URLs that move between rules."""

import asyncio
import json
from collections import Counter
from contextlib import ExitStack
from itertools import product
from signal import SIGTERM
from typing import Any

import pytest
import redis
from scrapy import Request
from support.clock import MovedServer
from support.counting import COUNTING, REMEMBER, assert_ended_well
from support.dupefilters import URL, Make, stats
from support.lockstep import slots_of_pages, worker_on
from support.loops import in_loop
from support.odd_site import TREE, Lab, LabOf, page, tree
from support.outages import killed
from support.servers import LASTING, Server, start_cluster
from support.slots import slots_on
from support.workers import Worker
from support.workers import page as page_request

from scrapy_bloom import BloomDupeFilter, ConfigurationError
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl.claims.policy import Lookup

#: From the longest to the shortest.
LENGTHS = ["never", "9 months", "6 months", "2 weeks", "1 day"]
#: Rules that match nothing: their filters are open.
OTHERS = [("^$", length) for length in LENGTHS]


def rule(window: object, *others: tuple[object, object]) -> dict[str, Any]:
    """Return settings with a rule for all URLs, and others."""
    return {"BLOOM_RECRAWL_RULES": [*others, (".", window)]}


def round_trips(dupefilter: BloomDupeFilter) -> int:
    connections = dupefilter._crawl.connections
    return connections.round_trips + connections.async_round_trips


# -- one URL alone --


@pytest.mark.parametrize(("before", "after"), [*product(LENGTHS, LENGTHS)])
def test_a_url_that_moves_is_seen_if_its_window_was_as_long_or_longer(
    make: Make, before: str, after: str
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "6 months"}
    assert not make(**rule(before, *OTHERS), **settings).request_seen(Request(URL))
    moved = make(**rule(after, *OTHERS), **settings)
    was_longer = LENGTHS.index(before) <= LENGTHS.index(after)
    assert moved.request_seen(Request(URL)) is was_longer
    assert moved.request_seen(Request(URL))
    assert not moved.request_seen(Request(f"{URL}&other"))


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("1 run", "6 months", True),
        ("6 months", "1 run", True),
        ("2 runs", "1 run", True),
        ("1 run", "2 runs", False),
        ("1 run", "never", False),
        ("never", "1 run", True),
        ("1 day", "run", False),
        ("default", "run", False),
        ("default", "1 day", True),
        ("1 day", "default", False),
        ("9 months", "default", True),
        ({"recrawl_after": "6 months", "rotate_every": "3 months"}, "default", True),
        ("default", {"recrawl_after": "6 months", "rotate_every": "3 months"}, True),
        ("24 hours", "1 day", True),
    ],
)
def test_runs_times_and_the_main_window(
    make: Make, before: object, after: object, seen: bool
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "6 months", "BLOOM_RUN": "monday"}
    others = [("^$", before), ("^$", after)]
    assert not make(**rule(before, *others), **settings).request_seen(Request(URL))
    assert make(**rule(after, *others), **settings).request_seen(Request(URL)) is seen


def test_a_window_that_no_rule_has_any_more_is_not_asked(make: Make) -> None:
    assert not make(**rule("2 weeks")).request_seen(Request(URL))
    assert not make(**rule("1 day")).request_seen(Request(URL))


def test_equal_windows_share_a_filter(make: Make, client: redis.Redis) -> None:
    rules = [("/a", {"recrawl_after": "24 hours", "capacity": 70}), ({"depth": 3}, "1 day")]
    dupefilter = make(BLOOM_RECRAWL_RULES=rules, BLOOM_START_RECRAWL_AFTER=86_400)
    start = Request(URL, meta={"is_start_request": True})
    assert not dupefilter.request_seen(start)
    assert dupefilter.request_seen(Request(URL))
    assert stats(dupefilter)["bloom/1-day/new"] == stats(dupefilter)["bloom/1-day/seen"] == 1
    assert dupefilter.filters
    assert dupefilter.filters.by_window.keys() == {"default", "1-day"}
    config = dupefilter.filters.by_window["1-day"].config
    assert config is not None
    assert config.capacity == 70
    headers = {key.decode() for key in client.keys("*:header")}
    assert headers == {"{shop:bloom:0}:header", "{shop:bloom:1-day:0}:header"}


def test_conditions_on_host_and_depth(make: Make) -> None:
    rules = [({"host": "x.example", "depth": 1}, "1 day"), ({"host": "x.example"}, "2 days")]
    dupefilter = make(BLOOM_RECRAWL_RULES=rules)
    for url, depth in (
        ("https://www.x.example/a", 1),
        ("https://x.example/b", 2),
        ("https://y.example/c", 1),
        ("https://x.example/d", "1"),
    ):
        assert not dupefilter.request_seen(Request(url, meta={"depth": depth}))
    found = [stats(dupefilter)[f"bloom/{name}new"] for name in ("1-day/", "2-days/", "")]
    assert found == [1, 2, 1]


def test_what_a_request_names_goes_before_the_rules(make: Make) -> None:
    dupefilter = make(**rule("1 day"), BLOOM_RECRAWL_AFTER="6 months")
    for number, (value, name) in enumerate(
        [("6 months", ""), ("default", ""), (86_400, "1-day/"), ("1d", "1-day/"), ("run", "run/")]
    ):
        request = Request(f"{URL}&{number}", meta={"bloom_recrawl_after": value})
        before = stats(dupefilter).get(f"bloom/{name}new", 0)
        assert not dupefilter.request_seen(request)
        assert stats(dupefilter)[f"bloom/{name}new"] == before + 1


def test_only_urls_of_shorter_windows_pay_for_the_question(make: Make) -> None:
    plain = make(BLOOM_RECRAWL_AFTER="6 months")
    dupefilter = make(BLOOM_RECRAWL_AFTER="6 months", BLOOM_RECRAWL_RULES=[("/x", "1 day")])
    for one in (plain, dupefilter):
        for number in range(200):  # the first one of a block computes what its calls have in common
            one.request_seen(Request(f"https://example.com/{number}"))
            one.request_seen(Request(f"https://example.com/x/{number}"))
    before = round_trips(dupefilter)
    assert not dupefilter.request_seen(Request("https://example.com/new"))
    assert round_trips(dupefilter) == before + 1
    assert not dupefilter.request_seen(Request("https://example.com/x/new"))
    assert round_trips(dupefilter) == before + 3
    # In the main filter only; then the answer is cached.
    assert not plain.request_seen(Request("https://example.com/x/moved"))
    assert dupefilter.request_seen(Request("https://example.com/x/moved"))
    assert round_trips(dupefilter) == before + 4
    assert dupefilter.request_seen(Request("https://example.com/x/moved"))
    assert round_trips(dupefilter) == before + 4


def test_a_moved_url_is_due_when_its_longer_window_has_passed(
    make: Make, moved: MovedServer
) -> None:
    settings = {"BLOOM_REDIS_URL": moved.url, "BLOOM_RECRAWL_AFTER": "1 week"}
    assert not make(**settings).request_seen(Request(URL))
    after = settings | rule("1 day")
    assert make(**after).request_seen(Request(URL))
    for seconds in (86_400 * 7, 86_400, 86_400):  # then each day
        moved.move(seconds)
        dupefilter = make(**after)
        assert not dupefilter.request_seen(Request(URL))
        assert dupefilter.request_seen(Request(URL))


# -- errors of the question hide no page --


def test_a_filter_that_cannot_be_asked_hides_no_page(make: Make, client: redis.Redis) -> None:
    dupefilter = make(BLOOM_RECRAWL_RULES=[("/x", "1 day")])
    for key in client.keys("{shop:bloom:[0-9]*}:ring"):
        client.delete(key)
        client.set(key, "of another type")
    numbers = range(50)
    for number in numbers:
        assert not dupefilter.request_seen(Request(f"https://example.com/x/{number}"))
    for number in numbers:
        assert dupefilter.request_seen(Request(f"https://example.com/x/{number}"))
    assert stats(dupefilter)["bloom/outages"] == 1


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
@in_loop
async def test_what_moved_is_new_at_most_once_while_the_server_is_away(
    remember: str, lasting_server: Server
) -> None:
    rules = [("1$", "1 day")]
    settings: dict[str, Any] = {"BLOOM_REMEMBER": remember, "BLOOM_RECRAWL_RULES": rules}
    with Worker(lasting_server.url, BLOOM_REMEMBER="scheduled") as worker:
        assert not any(worker.sees(number) for number in (11, 12))
    with Worker(lasting_server.url, **settings) as worker:
        assert worker.sees(11)
        with killed(lasting_server):
            assert worker.sees(11), "the answer of the longer window is cached"
            assert not worker.sees(21)
            assert worker.sees(21)
        await worker.back()
        assert worker.sees(11)
        assert worker.sees(21)


@pytest.mark.parametrize("together", [False, True])
def test_one_node_of_a_cluster_is_away(any_binary: str, together: bool) -> None:
    with start_cluster(any_binary, *LASTING, "--cluster-node-timeout", "60000") as nodes:
        lose_a_node(nodes, together)


@in_loop
async def lose_a_node(nodes: list[Server], together: bool) -> None:
    """A moved page is new only if its record is on the node."""
    settings = {"BLOOM_TIMEOUT": 3.0, "BLOOM_REMEMBER": "scheduled"}
    numbers = range(120)
    with worker_on(nodes[0].port, **settings) as worker:
        assert not any(worker.sees(number) for number in numbers)
        own = slots_on(nodes[1])
        gone = {n for n, slot in slots_of_pages(worker, numbers).items() if slot in own}
    assert 0 < len(gone) < len(numbers)
    rules = [[".", "1 day"]]
    with (
        worker_on(nodes[0].port, BLOOM_RECRAWL_RULES=rules, **settings) as worker,
        killed(nodes[1]),
    ):
        if together:
            lookups = batch(worker.dupefilter, [page_request(number) for number in numbers])
            await worker.dupefilter._deduplicator.decide_many(lookups)
            pairs = zip(numbers, lookups, strict=True)
            new = {n for n, lookup in pairs if not lookup.is_duplicate}
        else:
            new = {number for number in numbers if not worker.sees(number)}
        assert new == gone


# -- many at once --


def batch(dupefilter: BloomDupeFilter, requests: list[Request]) -> list[Lookup]:
    """Return the lookups of a page's links; all of them are needed."""
    found = [dupefilter._deduplicator.prepare(one, Request(URL)) for one in requests]
    lookups = [lookup for lookup in found if lookup is not None]
    assert len(lookups) == len(requests)
    return lookups


@REMEMBER
@in_loop
async def test_a_batch_asks_each_longer_filter_once(server: Server, remember: str) -> None:
    with server.client() as client:
        client.flushall()
    links = [Request(f"https://example.com/{n}/{name}") for name in "abc" for n in range(10)]
    with Worker(server.url, BLOOM_REMEMBER="scheduled") as worker:
        assert not any(worker.dupefilter.request_seen(link) for link in links[::2])
    settings: dict[str, Any] = {
        "BLOOM_REMEMBER": remember,
        "BLOOM_RECRAWL_RULES": [("/a$", "1 day"), ("/b$", "2 weeks")],
    }
    with Worker(server.url, **settings) as worker:
        decide, connections = worker.dupefilter._deduplicator.decide_many, worker.connections
        await decide(batch(worker.dupefilter, [Request(f"{URL}/{n}") for n in "abc"]))  # scripts
        before = connections.async_round_trips
        lookups = batch(worker.dupefilter, links)
        await decide(lookups)
        # The main filter and that of 2 weeks are asked, then three are claimed in or added to.
        assert connections.async_round_trips == before + 5
        assert [lookup.verdict for lookup in lookups] == [Verdict.SEEN, Verdict.NEW] * 15
        known = batch(worker.dupefilter, links[::2])
        assert {lookup.verdict for lookup in known} == {Verdict.SEEN}, "of the cache"
        for name, count in (("", 5), ("1-day/", 5), ("2-weeks/", 5)):
            for link in links[1::2]:
                link.meta.setdefault("once", worker.dupefilter.request_seen(link))
            assert worker.stat(f"{name}new") == count
        assert not any(link.meta["once"] for link in links[1::2])


@in_loop
async def test_a_batch_whose_question_fails_is_new(server: Server) -> None:
    with server.client() as client:
        client.flushall()
        with Worker(server.url, **rule("1 day"), BLOOM_REMEMBER="scheduled") as worker:
            for key in client.keys("{shop:bloom:[0-9]*}:ring"):
                client.delete(key)
                client.set(key, "of another type")
            links = [page_request(number) for number in range(30)]
            lookups = batch(worker.dupefilter, links)
            await worker.dupefilter._deduplicator.decide_many(lookups)
            assert {lookup.verdict for lookup in lookups} == {Verdict.UNKNOWN}
            assert not any(worker.dupefilter.request_seen(link) for link in links)
            assert all(worker.dupefilter.request_seen(link) for link in links)
            client.flushall()
            await asyncio.sleep(0)


# -- settings --


def test_never_as_a_rule_needs_to_know_how_long_the_main_window_is(make: Make) -> None:
    assert not make(BLOOM_RECRAWL_AFTER="6 months").request_seen(Request(URL))
    with pytest.raises(ConfigurationError, match='set BLOOM_RECRAWL_AFTER = "6 months" to keep'):
        make(**rule("never"))
    assert make(**rule("never"), BLOOM_RECRAWL_AFTER="never").request_seen(Request(URL))
    assert make(**rule("never")).request_seen(Request(URL))


# -- crawls --

ARTICLES = {
    "/": page("/list", *(f"/article/{n}" for n in range(6))),
    "/list": page("/article/7"),
    **{f"/article/{n}": page() for n in range(8)},
}
EACH_RUN = Counter(["/"])


def rules(*pairs: tuple[object, object]) -> dict[str, Any]:
    """Return settings as the command line has them."""
    return {"BLOOM_RECRAWL_RULES": json.dumps(pairs)}


@REMEMBER
@pytest.mark.parametrize("size", [0, 64])
def test_rules_change_between_crawls(lab_of: LabOf, remember: str, size: int) -> None:
    lab = lab_of(ARTICLES)
    settings: dict[str, Any] = {"BLOOM_REMEMBER": remember, "BLOOM_BATCH": size}
    settings["BLOOM_RECRAWL_AFTER"] = "6 months"
    articles = Counter(path for path in ARTICLES if path.startswith("/article") and "6" not in path)

    done = lab.crawl(**settings)
    assert done.hits == EACH_RUN + articles + Counter(["/list"])
    # A shorter window: what the main filter knows is not forgotten.
    done = lab.crawl(**settings, **rules(("/article/", "2 weeks"), ("/list", "run")))
    assert done.hits == EACH_RUN + Counter(["/list"])
    assert done.stats["bloom/2-weeks/seen"] == 7
    assert_ended_well(done)
    # A longer one: fetched once more.
    longer = rules(("/article/", "1 year"), ("/list", "run"))
    assert lab.crawl(**settings, **longer).hits == EACH_RUN + Counter(["/list"]) + articles
    assert lab.crawl(**settings, **longer).hits == EACH_RUN + Counter(["/list"])
    # And back, where the longer one is still in the settings.
    back = rules(("/article/[0-3]", "1 day"), ("/article/", "1 year"), ("/list", "default"))
    assert lab.crawl(**settings, **back).hits == EACH_RUN
    assert lab.recorded("odd:bloom:1-year") == articles.keys()
    assert lab.recorded("odd:bloom:1-day") == set()


@REMEMBER
def test_rules_on_the_depth_read_what_start_pages_link_in_each_run(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page("/c"), "/b": page("/a", "/c"), "/c": page()})
    settings = rules(({"depth": 1}, "run")) | {"BLOOM_REMEMBER": remember}
    assert lab.crawl(**settings).hits == Counter(["/", "/a", "/b", "/c"])
    done = lab.crawl(**settings)
    assert done.hits == Counter(["/", "/a", "/b"])
    assert done.recorded == {"/c"}
    assert_ended_well(done)


@REMEMBER
def test_workers_with_one_queue_fetch_every_page_once_before_and_after_a_rule_changes(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of(tree(60))
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_IDLE_BEFORE_CLOSE": 2,
        "REDIS_URL": lab.redis_url,
        "BLOOM_START_RECRAWL_AFTER": "default",
        "BLOOM_REMEMBER": remember,
    }
    first, second = [("1$", "1 day"), ("2$", "2 weeks")], [("2$", "1 day"), ("[13]$", "2 weeks")]
    with ExitStack() as stack:
        crawls = [
            stack.enter_context(lab.start(COUNTING, **settings, **rules(*first))) for _ in "ab"
        ]
        for crawl in crawls:
            crawl.wait()
            assert "ERROR" not in crawl.log
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    # From 2 weeks or for ever to less: seen. From a day to 2 weeks: once more.
    lab.site.fetches.clear()
    lab.site.pages |= {"/start": page(*lab.site.pages)}
    again = COUNTING + "    async def start(self):\n        yield self.at('/start')\n"
    with ExitStack() as stack:
        crawls = [stack.enter_context(lab.start(again, **settings, **rules(*second))) for _ in "ab"]
        for crawl in crawls:
            crawl.wait()
            assert "ERROR" not in crawl.log
    longer = {path for path in lab.site.pages if path.endswith("1")}
    assert lab.site.hits() == Counter(longer | {"/start"})
    assert not lab.claims()


# -- windows that earlier versions have stored by their names --


def rename_window(lab: Lab, old: str, new: str) -> None:
    """Give a window's filter and its claims another name, as an earlier version had it."""
    client: Any = lab.client
    for key in client.keys(f"{{odd:bloom:{old}:*"):
        client.rename(key, key.replace(f":{old}:".encode(), f":{new}:".encode()))
    for key in client.keys("{odd:bloom:*}:claims"):
        for field, text in client.hgetall(key).items():
            client.hset(key, field, text.replace(f'"{old}:'.encode(), f'"{new}:'.encode()))
    assert client.hdel("{odd:bloom:0}:header", f"window:{old}") == 1
    client.hset("{odd:bloom:0}:header", f"window:{new}", "1")


def test_what_was_claimed_in_a_window_with_a_name_is_crawled(lab_of: LabOf) -> None:
    links = [f"/article-{n}" for n in range(30)]
    lab = lab_of({"/": page(*links), **dict.fromkeys(links, page())})
    settings = rules(("/article", "1 week"))
    lab.stop_midway(6, TREE, SIGTERM, **settings)
    left = lab.site.pages.keys() - lab.site.hits().keys()
    assert len(left) > 15
    rename_window(lab, "1-week", "articles")
    done = lab.crawl(TREE, **rules(("/article", "1 day")))
    assert "requests of the window 'articles' were claimed and not crawled" in done.log
    assert "no rule has it any more" in done.log
    assert not lab.site.pages.keys() - lab.site.hits().keys()
    assert left <= lab.recorded("odd:bloom:articles")
    assert_ended_well(done)
