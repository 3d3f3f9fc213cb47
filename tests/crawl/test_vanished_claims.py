"""Claims that are gone, late or counted too often in a crawl that lives on: no page is lost by it.

The site holds answers back while the server is away, or loses what it has stored.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.lab_commands import bloom
from support.odd_site import ERROR, SHARED_QUEUE, Crawl, Lab, LabOf, kinds, moved, page, serve, tree
from support.outages import killed
from support.polling import until
from support.replicas import wait_for_link
from support.servers import LASTING, Server

#: No retry of Scrapy's comes between a page that fails and its claim.
ONCE: dict[str, Any] = {"RETRY_ENABLED": False, "BLOOM_HEARTBEAT": 1}
#: What a crawl logs at the beginning and the end of an outage.
AWAY, BACK = "the crawl continues without the server", "reconnected to "
#: /source yields requests that can't be stored; /waits has yielded its links, and goes on.
SPIDER = """
class WaitingSpider(OddSpider):
    async def parse(self, response):
        callback = None
        if response.url.endswith("/source"):
            callback = lambda response: None
        for request in self.links(response, callback=callback):
            yield request
        if response.url.endswith("/waits"):
            await self.download(response.urljoin("/inline"))
"""


@pytest.fixture
def lab(lasting_server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose server loses nothing when it is killed."""
    with serve({}) as site, Lab(site, lasting_server.url, tmp_path) as lab:
        yield lab


@pytest.fixture
def lossy_lab(own_server: Server, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose server is empty when it is started again."""
    with serve({}) as site, Lab(site, own_server.url, tmp_path) as lab:
        yield lab


def wait_for(lab: Lab, crawl: Crawl, held: int, inline: int = 0) -> None:
    """Wait until the site holds so many answers back, and was asked so often for /inline."""

    def waits() -> bool:
        return lab.site.held == held and lab.site.hits()["/inline"] >= inline

    crawl.until(waits, "the crawl waits for the site")


def restart(server: Server, crawl: Crawl) -> None:
    """Restart a server when a crawl has noticed that it is away; wait until it is back for it."""
    away, back = (crawl.log.count(text) for text in (AWAY, BACK))
    with killed(server):
        until(lambda: crawl.log.count(AWAY) > away, "the server is away")
    until(lambda: crawl.log.count(BACK) > back, "the server is back")


# -- outages --


@pytest.mark.parametrize("source", [moved("/target"), page("/target")], ids=["redirect", "lambda"])
def test_a_page_found_in_an_outage_that_fails_is_found_again(
    lab: Lab, lasting_server: Server, source: Any
) -> None:
    """Else the page that leads to it, which is retried in the same run, is remembered alone."""
    lab.site.pages |= {"/": page("/source", "/busy"), "/busy": page(), "/source": source}
    lab.site.pages["/target"] = [ERROR, page()]
    lab.site.hold("/source", "/busy")
    with lab.start(SPIDER, **ONCE) as crawl:
        wait_for(lab, crawl, held=2)
        with killed(lasting_server):
            lab.site.release("/source")
            failed = re.compile("Ignoring response <500 .*/target>")
            until(lambda: failed.search(crawl.log), "the target fails in the outage")
        both = {"/source": "-", "/target": "-"}
        crawl.until(lambda: kinds(lab.claims()) | both == kinds(lab.claims()), "both have failed")
        lab.make_due()
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/source"] == 2
    assert lab.recorded() >= {"/source", "/target"}
    assert not lab.claims()


def test_restarts_of_a_server_that_loses_nothing_give_up_no_page(
    lab: Lab, lasting_server: Server
) -> None:
    """A page is crawled again after a restart, which is no failure of the page."""
    lab.site.pages |= {"/": page("/waits"), "/waits": page(), "/inline": page()}
    lab.site.hold("/inline")
    with lab.start(SPIDER, **ONCE) as crawl:
        for times in range(1, 6):
            wait_for(lab, crawl, held=1, inline=times)
            restart(lasting_server, crawl)
            lab.site.hold_after(1)
            lab.site.release("/inline")
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/waits"] == 6
    assert "/waits" in lab.recorded()
    assert not lab.claims()


def test_a_worker_still_crawls_the_requests_that_a_user_has_dropped(lab: Lab) -> None:
    """Those that fail are pending again."""
    lab.site.pages |= {"/": page("/a", "/b"), "/a": page("/c"), "/b": ERROR, "/c": page()}
    lab.site.hold("/a", "/b")
    with lab.start(**ONCE) as crawl:
        wait_for(lab, crawl, held=2)
        dropped = bloom(lab, "clear", "--pending", "--yes")
        assert dropped.out.endswith(": 2 pending requests forgotten\n")
        assert not lab.claims()
        lab.site.release()
        crawl.wait()
    assert lab.recorded() == {"/a", "/c"}
    assert kinds(lab.claims()) == {"/b": "-"}
    assert {*lab.site.hits().values()} == {1}


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "idle connections"])
@pytest.mark.parametrize("options", [LASTING, ()], ids=["keeps all", "empty"])
def test_a_redirect_after_a_restart_leads_to_a_page_that_was_known_before(
    any_binary: str, tmp_path: Path, options: tuple[str, ...], is_noticed: bool
) -> None:
    """On a server that is empty then, the page isn't remembered without its target.

    The crawl may notice the restart before, or when it uses a connection that was idle.
    """
    pages = {"/": page("/target", "/source"), "/source": moved("/target"), "/target": page()}
    settings = {**ONCE, "BLOOM_HEARTBEAT": 1 if is_noticed else 600}
    with (
        Server(any_binary, *options) as server,
        serve(pages) as site,
        Lab(site, server.url, tmp_path) as lab,
    ):
        site.hold("/source")
        with lab.start(**settings) as crawl:
            until(lambda: site.held and "/target" in lab.recorded(), "the target is known")
            if is_noticed:
                restart(server, crawl)
            else:
                with killed(server):
                    pass
            site.release()
            crawl.wait()
        assert site.hits()["/target"] == (1 if options else 2)
        assert ("/source" in lab.recorded()) <= ("/target" in lab.recorded())
        lab.crawl(**settings)
        assert lab.recorded() == {"/source", "/target"}
        assert not lab.claims()


# -- servers that lose claims, or all --


LINKS = [f"/{number}" for number in range(20)]


def test_no_link_is_lost_with_a_queue_that_was_flushed(lab_of: LabOf) -> None:
    """The server is the same process as before, so it doesn't look like a restart."""
    lab = lab_of({"/": page("/waits"), "/waits": page(*LINKS), **dict.fromkeys(LINKS, page())})
    lab.site.pages["/inline"] = page()
    lab.site.hold("/inline", *LINKS)
    settings = {**ONCE, **SHARED_QUEUE, "CONCURRENT_REQUESTS": 3}
    with lab.start(SPIDER, **settings) as crawl:
        wait_for(lab, crawl, held=3)
        lab.client.flushall()
        lab.site.release()
        crawl.wait()
    lab.crawl(SPIDER, **settings)
    assert not lab.missing()


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "stopped meanwhile"])
def test_no_link_is_lost_with_a_server_that_was_a_replica(
    lossy_lab: Lab, own_server: Server, is_noticed: bool
) -> None:
    """It's the same process as before, with a copy of its data that is older than the links."""
    lab = lossy_lab
    lab.site.pages |= {"/": page("/waits"), "/waits": page(*LINKS), "/inline": page()}
    lab.site.pages |= dict.fromkeys(LINKS, page())
    lab.site.hold("/waits", "/inline", *LINKS)
    with Server(own_server.binary) as other, lab.start(SPIDER, **ONCE) as crawl:
        wait_for(lab, crawl, held=1)
        copy(own_server, other)
        lab.site.release("/waits")
        crawl.until(lambda: len(lab.claims()) > len(LINKS), "all links are claimed")
        if not is_noticed:
            os.kill(crawl.pid, signal.SIGSTOP)
        copy(other, own_server, crawl if is_noticed else None)
        os.kill(crawl.pid, signal.SIGCONT)
        lab.site.release("/inline")
        crawl.until(lambda: kinds(lab.claims()).get("/waits") != "w", "the page has ended")
        crawl.kill()
    lab.crawl(SPIDER, **ONCE)
    assert not lab.missing()


def copy(source: Server, target: Server, crawl: Crawl | None = None) -> None:
    """Let a server be another one's replica, until it has its data, and a crawl notices that."""
    with target.client() as client, source.client() as other:
        other.config_set("repl-diskless-sync-delay", 0)
        client.replicaof("127.0.0.1", str(source.port))
        wait_for_link(target, source)
        if crawl is not None:
            crawl.until(lambda: AWAY in crawl.log, "the crawl notices it")
        client.replicaof("NO", "ONE")


def test_no_link_of_the_window_run_is_lost_with_a_server_restarted_empty(
    lossy_lab: Lab, own_server: Server
) -> None:
    """The page that links them is crawled again in the same run, which has taken them before."""
    lab = lossy_lab
    lab.site.pages |= {"/": page("/list", "/hub"), "/list": page(*LINKS), "/hub": page("/list")}
    lab.site.pages |= dict.fromkeys(LINKS, page())
    lab.site.hold("/hub", *LINKS)
    run = {"BLOOM_RECRAWL_RULES": r'[["/\\d+$", "run"]]', "CONCURRENT_REQUESTS": 2}
    settings = {**ONCE, **SHARED_QUEUE, **run}
    with lab.start(**settings) as crawl:
        wait_for(lab, crawl, held=2)
        restart(own_server, crawl)
        lab.site.release()
        crawl.wait()
    lab.crawl(**settings)
    assert not lab.missing()


def test_a_crawl_on_a_full_server_that_evicts_ends(lossy_lab: Lab) -> None:
    """What this process has crawled stays known to it, whatever the server has forgotten."""
    lab = lossy_lab
    lab.site.pages |= tree(60)
    lab.client.config_set("maxmemory-policy", "allkeys-lru")
    with lab.midway(5, **ONCE, BLOOM_CAPACITY=1_000_000, CLOSESPIDER_PAGECOUNT=300) as crawl:
        # One bitmap less than the filter has.
        used: int = lab.client.info("memory")["used_memory"]
        lab.client.config_set("maxmemory", used - 500_000)
        lab.site.release()
        stats = crawl.wait()
        assert "may delete parts of the filter (allkeys-lru)" in crawl.log
    assert stats["finish_reason"] == "finished"
    assert not lab.missing()
