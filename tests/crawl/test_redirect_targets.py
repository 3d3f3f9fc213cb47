"""Redirects to pages that are pending, fail or are dropped: no page is remembered without them.

The site holds an answer back while a redirect's target, or a page that links it, is looked up.
"""

import os
import signal
from typing import Any

import pytest
from support.odd_site import DENIED, ERROR, SHARED_QUEUE, Lab, LabOf, Reply, kinds, moved, page
from support.polling import until

#: No retry of Scrapy's comes between a page that fails and its claim.
ONCE: dict[str, Any] = {"RETRY_ENABLED": False, "BLOOM_HEARTBEAT": 1}
MAINTENANCE = Reply(status=503)
SPIDER = """
from scrapy.exceptions import IgnoreRequest

class Drop(Component):
    def process_response(self, request, response, spider=None):
        if self.crawler.settings.getbool("DROPS") and request.url.endswith("/target"):
            raise IgnoreRequest
        return response

class RedirectSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Drop: 10}}
"""


def alive(lab: Lab) -> bool:
    """Whether a worker counts as alive."""
    keys = lab.client.keys("*:workers:*")
    return any(lab.client.zcount(key, f"({lab.now()}", "+inf") for key in keys)


@pytest.mark.parametrize(
    "settings", [{}, {"JOBDIR": "../job"}, SHARED_QUEUE], ids=["memory", "jobdir", "scrapy-redis"]
)
def test_a_site_in_maintenance_is_crawled_when_it_is_back(
    lab_of: LabOf, settings: dict[str, Any]
) -> None:
    """All of its pages redirect to one that answers 503; later, nothing links them any more."""
    links = [f"/{number}" for number in range(30)]
    lab = lab_of({"/": page(*links), **dict.fromkeys(links, moved("/maintenance"))})
    lab.site.pages["/maintenance"] = MAINTENANCE
    done = lab.crawl(**ONCE, **settings)
    assert not done.recorded
    assert {path for path, claim in done.claims.items() if claim.kind == "-"} >= {*links}
    lab.site.pages |= {"/": page(), **dict.fromkeys(links, page())}
    lab.make_due()
    done = lab.crawl(**ONCE, **settings)
    assert done.hits.keys() >= {*links}
    assert done.recorded >= {*links}


OWN_SITE = """
class OwnSiteSpider(OddSpider):
    allowed_domains = ["127.0.0.1"]
"""


def test_a_page_is_crawled_later_that_redirects_to_another_site(lab_of: LabOf) -> None:
    """As all pages do to a status page in maintenance, or to a login elsewhere."""
    lab = lab_of({"/": page("/a"), "/a": page("/b")})
    lab.site.pages["/b"] = moved(f"{lab.site.offsite}/status")
    done = lab.crawl(OWN_SITE, **ONCE)
    assert done.recorded == {"/a"}
    assert kinds(done.claims) == {"/b": "-"}
    lab.site.pages["/b"] = page()
    lab.make_due()
    assert lab.crawl(OWN_SITE, **ONCE).recorded == {"/a", "/b"}


def test_a_page_fails_that_redirects_to_a_start_page_in_maintenance(lab_of: LabOf) -> None:
    """Only this process remembers that it has asked for the start page."""
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    lab.kill_midway(1, **ONCE)
    lab.site.pages |= {"/": MAINTENANCE, "/a": moved("/"), "/b": moved("/")}
    done = lab.crawl(**ONCE)
    assert kinds(done.claims).items() >= {"/a": "-", "/b": "-"}.items()
    lab.site.pages |= {"/": page(), "/a": page(), "/b": page()}
    lab.make_due()
    assert lab.crawl(**ONCE).recorded >= {"/a", "/b"}


def test_a_page_is_remembered_that_redirects_to_a_start_page(lab_of: LabOf) -> None:
    """As the pages of articles that are gone do."""
    lab = lab_of({"/": page("/a", "/b"), "/a": moved("/"), "/b": moved("/")})
    done = lab.crawl(**ONCE)
    assert done.recorded >= {"/a", "/b"}
    assert done.hits["/"] == 2  # as a link to a start page is fetched once more
    assert lab.crawl(**ONCE).hits == {"/": 1}


LATEST = """
class LatestSpider(OddSpider):
    async def start(self):
        for path in ("/latest", "/archive"):
            yield Request(self.settings["SITE_URL"] + path)
"""


def test_a_page_is_crawled_that_a_start_page_redirects_to_no_more(lab_of: LabOf) -> None:
    """The next run is led to another issue, so the page that links this one is left with it."""
    lab = lab_of({"/latest": moved("/12"), "/archive": page("/p"), "/p": page("/12")})
    lab.site.pages |= {"/12": ERROR, "/13": page(), "/story": page()}
    lab.crawl(LATEST, **ONCE)
    lab.site.pages |= {"/latest": moved("/13"), "/12": page("/story")}
    lab.make_due()
    lab.crawl(LATEST, **ONCE)
    assert lab.recorded() >= {"/p", "/12", "/story"}


def test_a_start_page_that_redirects_to_itself_is_a_duplicate(lab_of: LabOf) -> None:
    """As with Scrapy's own filter."""
    lab = lab_of({"/": moved("/")})
    assert lab.crawl(**ONCE).hits == {"/": 1}


@pytest.mark.parametrize("end", ["is crawled", "fails", "is dropped"])
def test_pages_wait_for_a_pending_page_that_they_redirect_to(lab_of: LabOf, end: str) -> None:
    """They end as it does: are remembered, fail, or are new again."""
    pages = {"/": page("/a", "/b", "/c"), "/a": moved("/target"), "/b": moved("/target")}
    lab = lab_of({**pages, "/c": page(), "/target": ERROR if end == "fails" else page()})
    lab.site.hold("/target")
    drops = end == "is dropped"
    with lab.start(SPIDER, CONCURRENT_REQUESTS=2, DROPS=drops, **ONCE) as crawl:
        # One download is held, so both redirects come before /c.
        crawl.until(lambda: "/c" in lab.recorded(), "/c is crawled")
        assert lab.recorded() == {"/c"}
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/target"] == 1
    assert lab.recorded() == ({"/a", "/b", "/c", "/target"} if end == "is crawled" else {"/c"})
    failed = {"/a", "/b", "/target"} if end == "fails" else set()
    assert kinds(lab.claims()) == dict.fromkeys(failed, "-")


def test_a_page_stays_pending_that_redirects_to_the_page_of_a_stopped_worker(
    lab_of: LabOf,
) -> None:
    """A worker is stopped on a redirect. When another one has its page, it continues with it."""
    lab = lab_of({"/": page("/latest"), "/latest": moved("/issue"), "/issue": page()})
    lab.site.hold("/latest", "/issue")
    with lab.start(**ONCE) as stopped:
        stopped.until(lambda: lab.site.held, "a page is under way")
        os.kill(stopped.pid, signal.SIGSTOP)
        lab.site.release("/latest")
        until(lambda: not lab.site.held and not alive(lab), "it counts as dead")
        lab.site.hold("/latest")
        lab.site.pages["/"] = page()
        with lab.start(**ONCE) as other:
            other.until(lambda: lab.site.held, "the other one has its page")
            os.kill(stopped.pid, signal.SIGCONT)
            stopped.until(lambda: lab.site.held == 2, "it follows the redirect")
            lab.site.release("/latest")
            other.wait()
            assert not lab.recorded()
            stopped.kill()
    lab.crawl(**ONCE)
    assert lab.recorded() == {"/latest", "/issue"}


AGAIN = """
class Again(Component):
    def process_response(self, request, response, spider=None):
        is_banned = response.status == 403
        return request.replace(headers={"User-Agent": "Other"}) if is_banned else response

class AgainSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Again: 10}}
"""


def test_a_page_fails_whose_request_a_middleware_returns_as_a_duplicate(lab_of: LabOf) -> None:
    """Scrapy's filter drops it, too. If the site has banned the spider, it would never end."""
    lab = lab_of({"/": page("/a"), "/a": (DENIED, DENIED, page())})
    done = lab.crawl(AGAIN, **ONCE)
    assert done.hits["/a"] == 1
    assert kinds(done.claims) == {"/a": "-"}
