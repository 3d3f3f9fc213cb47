"""The queue of scrapy-redis on one server, the filter on another: workers, kills, outages."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from example_site.build import Site
from example_site.serve import SiteServer
from support.crawling import LISTING, options, run_together
from support.odd_site import TREE, Lab, serve, tree
from support.outages import killed
from support.polling import until
from support.servers import LASTING, Server

PAGES = 60
#: What scrapy-redis's queue and its spiders call, and what the filter calls.
QUEUE_COMMANDS = {"lrange", "zremrangebyrank"}
FILTER_COMMANDS = {"evalsha"}


@pytest.fixture
def queue(any_binary: str) -> Iterator[Server]:
    """The queue's server; it loses nothing when it is killed."""
    with Server(any_binary, *LASTING) as server:
        yield server


@pytest.fixture
def lab(lasting_server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A tree of pages; crawls of it remember on a server of their own."""
    with serve(tree(PAGES)) as site, Lab(site, lasting_server.url, tmp_path) as lab:
        yield lab


def distributed(queue: Server, *, persist: bool = True, **settings: Any) -> dict[str, Any]:
    """Return the settings of a worker; the lab adds where the filter is."""
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": persist,
        "REDIS_URL": queue.url,
        "BLOOM_HEARTBEAT": 1,
        **settings,
    }


def commands(server: Server) -> set[str]:
    """Return which commands clients have called since the server was started."""
    with server.client() as client:
        return {name.removeprefix("cmdstat_") for name in client.info("commandstats")}


def keys(server: Server) -> list[str]:
    with server.client(decode_responses=True) as client:
        return sorted(client.keys())


def queued(queue: Server) -> int:
    with queue.client() as client:
        return int(client.zcard("odd:requests"))


def assert_complete(lab: Lab) -> None:
    """All pages are recorded, and nothing is claimed any more."""
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


# -- the example project --


def test_each_server_has_its_own_part_only(
    queue: Server, lasting_server: Server, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    """Two workers of the example project, by the two addresses in its README."""
    with queue.client() as client:
        client.rpush("queue:start_urls", json.dumps({"url": f"{web.url}/"}))
    addresses = {"REDIS_URL": queue.url, "BLOOM_REDIS_URL": lasting_server.url}
    # An hour could end while they run.
    rules = json.dumps([[LISTING, "5 months"]])
    settings = options(web, {"MAX_IDLE_TIME_BEFORE_CLOSE": 2, "BLOOM_RECRAWL_RULES": rules})
    command = ["-m", "scrapy", "crawl", "queue", *settings]
    run_together(2, command, tmp_path, SCRAPY_PROJECT="distributed", **addresses)

    truth = site.truth()
    assert web.hits().keys() >= truth.lasting | truth.hubs
    assert commands(queue) >= QUEUE_COMMANDS
    assert not commands(queue) & FILTER_COMMANDS
    assert commands(lasting_server) >= FILTER_COMMANDS
    assert not commands(lasting_server) & QUEUE_COMMANDS
    assert keys(queue) == [], "all is fetched"
    assert keys(lasting_server)
    assert all(key.startswith("{queue:bloom:") for key in keys(lasting_server))


# -- servers that are down --


def test_the_queue_goes_on_while_the_filters_server_is_down(
    queue: Server, lasting_server: Server, lab: Lab
) -> None:
    """What is found meanwhile goes to the queue, and is recorded when the server is back."""
    settings = distributed(queue, BLOOM_TIMEOUT=0.5)
    lab.site.hold_after(15)
    with ExitStack() as outage, lab.start(TREE, **settings) as crawl:
        lab.saturate(crawl)
        outage.enter_context(killed(lasting_server))
        fetched = lab.site.hits().total()
        lab.site.hold_after(20)
        until(lambda: lab.site.hits().total() >= fetched + 20, "the crawl goes on")
        outage.close()
        lab.site.release()
        stats = crawl.wait()
    assert stats["bloom/outages"] == 1
    assert set(lab.site.hits()) == lab.site.pages.keys()
    lab.crawl(TREE, **settings)
    assert_complete(lab)


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_page_is_lost_while_the_queues_server_is_down(
    is_killed: bool, queue: Server, lab: Lab
) -> None:
    """What could not be queued stays claimed on the other server, and is due a moment later."""
    settings = distributed(queue, BLOOM_RETRY_AFTER="1 s")
    # So early that some of the pages under way have new links. Later ones may have none.
    lab.site.hold_after(5)
    with lab.start(TREE, **settings) as crawl:
        lab.saturate(crawl)
        with killed(queue):
            lab.site.release()
            until(lambda: "ERROR" in crawl.log or crawl.is_over, "the worker notices")
            if is_killed:
                crawl.kill()
        if not is_killed:
            crawl.wait()
    recorded = lab.recorded()
    lab.crawl(TREE, **settings)
    due = max((claim.time for claim in lab.claims().values()), default=0)
    until(lambda: lab.now() >= due, "what the queue could not take is due")
    lab.crawl(TREE, **settings)
    assert_complete(lab)
    assert not lab.fetched_twice() & recorded
