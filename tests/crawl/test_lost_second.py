"""BLOOM_REMEMBER = "crawled" when the server restarts from a snapshot without its last second.

What is under way in the crawler was claimed on a server that does not know of it any more.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from signal import SIGTERM

import pytest
from support.nursery import Nursery
from support.odd_site import Crawl, Lab, page, serve
from support.polling import until
from support.servers import Server

CHILDREN = 30

#: The callback of /parent yields its links, and goes on when the site has answered /gate.
GATED = """
from support.odd_site import OddSpider
from scrapy import Request, version_info
from scrapy.utils.defer import maybe_deferred_to_future

class GatedSpider(OddSpider):
    custom_settings = {"CONCURRENT_REQUESTS": 4}

    async def parse(self, response):
        for number, url in enumerate(response.css("a::attr(href)").getall()):
            yield response.follow(url, CALLBACK, priority=-number)
        if response.url.endswith("/parent"):
            await self.download(Request(response.urljoin("/gate")))

    async def download(self, request):
        if version_info >= (2, 14):
            return await self.crawler.engine.download_async(request)
        return await maybe_deferred_to_future(self.crawler.engine.download(request))

    def child(self, response):
        yield from self.links(response, callback=self.child)
"""
KEPT = GATED.replace("CALLBACK", "self.child if '/child' in url else self.parse")
UNKEPT = GATED.replace("CALLBACK", "lambda response: self.parse(response)")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def lab(any_binary: str, tmp_path: Path, nursery: Nursery) -> Iterator["Loss"]:
    children = [f"/child-{number}" for number in range(CHILDREN)]
    pages = {"/": page("/parent"), "/parent": page(*children), "/gate": page()}
    pages |= dict.fromkeys(children, page())
    with Server(any_binary) as server, serve(pages) as site:
        lab = Loss(site, server.url, tmp_path, nursery)
        lab.server = server
        with lab:
            yield lab


class Loss(Lab):
    """A lab whose server can lose its last writes."""

    server: Server

    @property
    def _dump(self) -> Path:
        return self.server.directory / "dump.rdb"

    def save(self) -> None:
        """Take the snapshot from which the server will restart."""
        self.client.save()
        shutil.copy(self._dump, self.directory / "old.rdb")

    def lose(self, crawl: Crawl) -> None:
        """Restart the server from the snapshot; wait until the crawler is connected again."""
        self.server.kill()
        shutil.copy(self.directory / "old.rdb", self._dump)
        self.server.start()
        self.wait_for_heartbeat(crawl)
        assert not crawl.is_over, crawl.log

    def wait_for_heartbeat(self, crawl: Crawl) -> None:
        before = self.workers()
        until(lambda: self.workers() != before or crawl.is_over, "there is a heartbeat")


def kill(lab: Loss, crawl: Crawl) -> None:
    """Kill the crawler when the callback of /parent has ended and further children are crawled."""
    lab.site.hold_after(5)
    until(
        lambda: len(children(lab.site.hits())) >= 12 or crawl.is_over, "further ones are under way"
    )
    for _ in range(2):  # by then everything is written
        lab.wait_for_heartbeat(crawl)
    assert not crawl.is_over, crawl.log
    crawl.kill()


def stop(lab: Loss, crawl: Crawl) -> None:
    """Stop the crawler; the callback of /parent ends, and what is under way."""
    crawl.ask_to_stop(SIGTERM)
    lab.site.release()
    crawl.wait()


def children(paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path.startswith("/child")}


@pytest.mark.parametrize("end", [kill, stop], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("spider", [KEPT, UNKEPT], ids=["kept", "not kept"])
def test_claims_of_a_page_that_was_under_way_are_not_lost(
    lab: Loss, spider: str, end: Callable[[Loss, Crawl], None]
) -> None:
    """The server forgets the children while the callback that yielded them goes on."""
    lab.site.hold_after(1)
    with lab.start(spider, BLOOM_HEARTBEAT=1) as crawl:
        until(lambda: (lab.site.held and lab.claims()) or crawl.is_over, "/parent is under way")
        lab.save()
        lab.site.hold_after(0)
        until(
            lambda: len(lab.claims()) == 1 + CHILDREN or crawl.is_over, "the children are claimed"
        )
        until(lambda: lab.site.held == 4 or crawl.is_over, "the callback waits for /gate")
        assert not crawl.is_over, crawl.log
        lab.lose(crawl)
        end(lab, crawl)
    assert len(children(lab.site.hits())) < CHILDREN
    for _ in range(2):
        lab.crawl(spider)
    assert len(children(lab.site.hits())) == CHILDREN
    done = lab.crawl(spider)
    assert done.hits == Counter(["/"])
    assert not done.claims
    assert not done.workers
