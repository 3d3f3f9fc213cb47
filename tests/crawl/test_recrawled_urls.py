"""``scrapy bloom recrawl`` and real crawls: a URL is crawled again, once, whatever happens."""

import json
from collections import Counter
from typing import Any

import pytest
from support.lab_commands import Called, bloom
from support.odd_site import ERROR, Lab, LabOf, page
from support.polling import until

from scrapy_bloom import __version__

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
    assert "1 URL is left for the next crawl of 'odd'" in recrawl(lab, "/a").out
    assert lab.recorded() == before
    done = lab.crawl()
    assert done.hits == EACH_RUN + Counter(["/a"])
    assert done.stats["bloom/taken_over"] == 1
    assert lab.recorded() == before
    assert not lab.claims()
    assert lab.crawl().hits == EACH_RUN


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({}, {"/b"}),
        ({"dont_filter": True}, {"/b"}),
        ({"meta": {"bloom_key": "product", "bloom_recrawl_after": "1 day"}}, {"/b"}),
        ({"method": "POST"}, {"/a", "/b"}),  # another page
    ],
    ids=["link", "unfiltered", "key and window", "method"],
)
def test_a_page_that_a_worker_crawls_now_is_left_to_it(
    lab_of: LabOf, arguments: dict[str, Any], left: set[str]
) -> None:
    """It may have no claim under its URL's fingerprint in the window that its URL has."""
    spider = f"""
class Own(OddSpider):
    def parse(self, response):
        return self.links(response, **{arguments})
"""
    settings = {"BLOOM_RECRAWL_RULES": json.dumps([["/list", "1 day"]])}
    lab = lab_of({"/": page("/a"), "/a": page(), "/b": page()})
    lab.site.hold_after(1)
    with lab.start(spider, **settings) as crawl:
        until(lambda: lab.site.held or crawl.is_over, "the page is asked for")
        done = recrawl(lab, "/a", "/b", spider=spider, **settings)
        assert done.out.splitlines()[0].startswith("claimed already") is ("/a" not in left)
        lab.site.release()
        crawl.wait()
    assert lab.claims().keys() == left
    assert lab.site.hits() == Counter(["/", "/a"])


FAILING = """
class Own(OddSpider):
    def parse(self, response):
        if not self.settings.getbool("LINKS", True):
            return
        yield Request(response.urljoin("/a"), callback=self.parse_item, cb_kwargs={"number": 7})
        yield Request(response.urljoin("/b"), meta={"bloom_key": "b"})
        yield Request(response.urljoin("/c"), method="POST", body=b"1", meta={"bloom_version": "1"})
        yield Request(response.urljoin("/d"))

    def parse_item(self, response, number=0):
        self.crawler.stats.inc_value(f"{response.request.method} {number}")
"""


@pytest.fixture
def failing(lab_of: LabOf) -> Lab:
    """A site of which three pages have failed."""
    pages = dict.fromkeys(("/a", "/b", "/c"), (ERROR, page()))
    lab = lab_of({"/": page(), **pages, "/d": page(), "/e": page()})
    lab.crawl(FAILING, **NO_RETRIES)
    assert bloom(lab, "failed", "--json", spider=FAILING).json["failed"] == 3
    return lab


def test_all_that_failed_is_due_at_once_with_its_own_requests(failing: Lab) -> None:
    """Whatever its key, version, method and callback; other URLs may be given, too."""
    assert failing.crawl(FAILING).hits == EACH_RUN  # it waits
    done = recrawl(failing, "--failed", "/a", "/e", "--json", spider=FAILING)
    assert (done.json["due"], done.json["left"], len(done.json["urls"])) == (3, 1, 4)
    assert bloom(failing, "failed", "--json", spider=FAILING).json["failed"] == 0
    last = failing.crawl(FAILING)
    assert last.hits == EACH_RUN + Counter(["/a", "/b", "/c", "/e"])
    assert last.stats["GET 7"] == 1
    assert not failing.claims()


def test_all_that_failed_goes_to_another_callback(failing: Lab) -> None:
    """Here no page links it first: then it would go where that link goes."""
    recrawl(failing, "--failed", "--callback", "parse_item", spider=FAILING)
    last = failing.crawl(FAILING, LINKS=False)
    assert last.hits == EACH_RUN + Counter(["/a", "/b", "/c"])
    assert (last.stats["GET 0"], last.stats["POST 0"]) == (2, 1)


def test_pages_that_failed_for_good_are_counted(failing: Lab) -> None:
    for claim in failing.claims().values():
        failing.client.hset(claim.key, claim.field, f"{claim.owner} 0.0 1 5 ")
    done = bloom(failing, "recrawl", "--failed", spider=FAILING)
    assert "3 pages failed and have no request any more" in done.err
    assert done.code == 0


LOOKING_OFTEN = """
from scrapy_bloom.crawl import recovery

recovery.LOOK_SECONDS = 0.5

class Own(OddSpider):
    pass
"""


def test_a_crawl_that_runs_takes_it_over(lab: Lab) -> None:
    """It looks for free claims every 10 minutes; here more often."""
    lab.site.pages["/"] = page("/new")
    lab.site.hold_after(1)
    before = lab.site.hits()
    with lab.start(LOOKING_OFTEN, BLOOM_HEARTBEAT=1) as crawl:
        until(lambda: lab.site.held or crawl.is_over, "the new page is asked for")
        recrawl(lab, "/a")
        until(lambda: lab.site.held == 2 or crawl.is_over, "the other one is asked for, too")
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() - before == EACH_RUN + Counter(["/new", "/a"])
    assert not lab.claims()


CRAWL_SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class Rules(CrawlSpider):
    name = "odd"
    rules = [
        Rule(LinkExtractor(allow="/list"), follow=True),
        Rule(LinkExtractor(deny="/other"), callback="parse_page", cb_kwargs={"x": 1}, follow=True),
    ]
    start = OddSpider.start

    def parse_page(self, response, x=0):
        self.crawler.stats.inc_value(f"parsed {response.url.rpartition('/')[2]} {x}")
"""


def test_a_crawl_spider_does_with_a_page_what_its_rules_do_with_a_link(lab: Lab) -> None:
    """Of a page that no rule matches, only the links are followed."""
    lab.site.pages |= {"/a": page("/c", "/added"), "/added": page(), "/list": page("/a", "/b")}
    lab.site.pages |= {"/other": page("/further"), "/further": page()}
    urls = [lab.site.url + path for path in ("/a", "/list", "/other")]
    called = bloom(lab, "recrawl", *urls, spider=CRAWL_SPIDER)
    assert "no rule of spider 'odd' matches 1 of the URLs: only their links are foll" in called.err
    done = lab.crawl(CRAWL_SPIDER)
    assert done.hits == EACH_RUN + Counter(["/a", "/list", "/added", "/other", "/further"])
    parsed = {name for name in done.stats if "parsed" in name}
    assert parsed == {"parsed a 1", "parsed added 1", "parsed further 1"}
    assert not lab.claims()


def test_where_nothing_is_read(lab_of: LabOf) -> None:
    lab, scheduled = lab_of({}), {"BLOOM_REMEMBER": "scheduled"}
    done = bloom(lab, "recrawl", "https://example.com/a", **scheduled)
    assert (done.code, done.out) == (2, "")
    assert 'BLOOM_REMEMBER is "scheduled"' in done.err
    done = bloom(lab, "--version", **scheduled)
    assert (done.code, done.out) == (0, f"scrapy-bloom {__version__}\n")
