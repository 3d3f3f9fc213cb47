"""A page is crawled again, once, because a user says so: whatever happens."""

from collections import Counter
from typing import Any

import pytest
from support.lab_commands import Called, bloom
from support.odd_site import ERROR, Lab, LabOf, page

from scrapy_bloom.bloom.protocol.claims import MAX_ATTEMPTS
from scrapy_bloom.crawl.leftovers import GIVEN_UP_SECONDS

#: What each run fetches: the start page.
EACH_RUN = Counter(["/"])
NO_RETRIES: dict[str, Any] = {"RETRY_ENABLED": False}


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    """A site that was crawled."""
    lab = lab_of({"/": page("/a", "/b"), "/a": page("/c"), "/b": page("/a"), "/c": page("/")})
    lab.crawl()
    assert lab.recorded() == {"/a", "/b", "/c"}
    return lab


def recrawl(lab: Lab, *paths: str, **settings: Any) -> Called:
    """Call the command for paths of the site, and options; it succeeds."""
    urls = [lab.site.url + path if path[0] == "/" else path for path in paths]
    done = bloom(lab, "recrawl", *urls, **settings)
    assert (done.code, done.err) == (0, "")
    return done


def test_exactly_that_page_is_crawled_again_once(lab: Lab) -> None:
    before = lab.recorded()
    assert (
        "1 URL will be crawled by the current or next run of spider 'odd'" in recrawl(lab, "/a").out
    )
    assert lab.recorded() == before
    done = lab.crawl()
    assert done.hits == EACH_RUN + Counter(["/a"])
    assert done.stats["bloom/picked_up"] == 1
    assert lab.recorded() == before
    assert not lab.claims()
    assert lab.crawl().hits == EACH_RUN


@pytest.mark.parametrize(
    ("arguments", "times"),
    [({}, 1), ({"dont_filter": True}, 2), ({"meta": {"bloom_key": "product"}}, 2)],
    ids=["link", "unfiltered", "key"],
)
def test_a_page_that_a_worker_crawls_now_is_left_to_it(
    lab_of: LabOf, arguments: dict[str, Any], times: int
) -> None:
    """Unless that has no claim under its URL's fingerprint."""
    spider = f"""
class Own(OddSpider):
    def parse(self, response):
        return self.links(response, **{arguments})
"""
    lab = lab_of({"/": page("/a"), "/a": page(), "/b": page()})
    lab.site.hold_after(1)
    with lab.start(spider) as crawl:
        crawl.until(lambda: lab.site.held, "the page is asked for")
        done = recrawl(lab, "/a", "/b", spider=spider)
        assert ("pending already" in done.out) is (times == 1)
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() == Counter({"/": 1, "/a": times, "/b": 1})
    assert not lab.claims()


FAILING = """
class Own(OddSpider):
    def parse(self, response):
        yield Request(response.urljoin("/a"), callback=self.parse_item, cb_kwargs={"number": 7})
        yield Request(response.urljoin("/b"), meta={"bloom_key": "b"})
        yield Request(response.urljoin("/c"), method="POST", body=b"1")
        yield Request(response.urljoin("/d"))

    def parse_item(self, response, number=0):
        self.crawler.stats.inc_value(f"{response.request.method} {number}")
"""


def test_all_that_failed_is_due_at_once_with_its_own_requests(lab_of: LabOf) -> None:
    """Whatever its key, version, method and callback; other URLs may be given, too."""
    pages = dict.fromkeys(("/a", "/b", "/c"), (ERROR, page()))
    lab = lab_of({"/": page(), **pages, "/d": page(), "/e": page()})
    lab.crawl(FAILING, **NO_RETRIES)
    assert bloom(lab, "pending", "--json", spider=FAILING).json["failed"] == 3
    done = lab.crawl(FAILING)
    assert done.hits == EACH_RUN, "it waits"
    assert "remembers 1 URL, has 3 pending requests, and never forgets" in done.log
    assert "1 URL is remembered, 3 pending" in done.log
    assert done.stats["bloom/pending"] == 3
    called = recrawl(lab, "--failed", "/a", "/e", "--json", spider=FAILING)
    assert [called.json[name] for name in ("retried", "ready", "none")] == [3, 1, 0]
    last = lab.crawl(FAILING)
    assert last.hits == EACH_RUN + Counter(["/a", "/b", "/c", "/e"])
    assert last.stats["GET 7"] == 1
    assert not lab.claims()


def test_requests_that_cannot_be_saved_are_crawled_with_the_page_that_yields_them(
    lab_of: LabOf,
) -> None:
    spider = """
class Own(OddSpider):
    def parse(self, response):
        is_a = response.url.endswith("/a")
        return self.links(response, **({"callback": lambda response: None} if is_a else {}))
"""
    lab = lab_of({"/": page("/a"), "/a": page("/b"), "/b": (ERROR, page())})
    lab.crawl(spider, **NO_RETRIES)
    assert "1 request couldn't be saved" in recrawl(lab, "--failed", spider=spider).out
    assert lab.crawl(spider).hits == EACH_RUN + Counter(["/a", "/b"])
    assert lab.recorded() == {"/a", "/b"}


def test_a_page_that_has_failed_too_often_waits_for_a_link_or_a_user(lab_of: LabOf) -> None:
    """It's listed for a month, and then forgotten."""
    failed = ("/a", "/b", "/c")
    lab = lab_of({"/": page(*failed), **dict.fromkeys(failed, ERROR)})
    lab.crawl(**NO_RETRIES)
    for path, claim in lab.claims().items():
        due = lab.now() - (GIVEN_UP_SECONDS if path == "/c" else 1)
        value = f"- HTTP-500 {due} {MAX_ATTEMPTS} {claim.request}"
        lab.client.hset(claim.key, claim.field, value)
    lab.site.pages |= {"/": page("/b"), **dict.fromkeys(failed, page())}
    assert lab.crawl().hits == EACH_RUN + Counter(["/b"])
    (row,) = bloom(lab, "pending", "--failed", "--json").json["rows"]
    assert (row["url"], row["next_try"]) == (f"{lab.site.url}/a", None)
    assert "1 URL will be crawled" in recrawl(lab, "--failed").out
    assert lab.crawl().hits == EACH_RUN + Counter(["/a"])
    assert not lab.claims()


CRAWL_SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class Rules(CrawlSpider):
    name = "odd"
    rules = [Rule(LinkExtractor(), callback="parse_page", cb_kwargs={"x": 1}, follow=True)]
    start = OddSpider.start

    def parse_page(self, response, x=0):
        self.crawler.stats.inc_value(f"parsed {response.url.rpartition('/')[2]} {x}")
"""


def test_a_method_gets_the_page_of_a_crawl_spider(lab: Lab) -> None:
    url = f"{lab.site.url}/a"
    called = bloom(lab, "recrawl", url, spider=CRAWL_SPIDER)
    assert (called.code, "--callback" in called.err) == (2, True), "it has no method parse"
    called = bloom(lab, "recrawl", url, "--callback", "parse_page", spider=CRAWL_SPIDER)
    assert (called.code, called.err) == (0, "")
    done = lab.crawl(CRAWL_SPIDER)
    assert done.hits == EACH_RUN + Counter(["/a"])
    assert done.stats["parsed a 0"] == 1
    assert not lab.claims()
