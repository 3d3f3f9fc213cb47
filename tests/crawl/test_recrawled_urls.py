"""``scrapy bloom recrawl`` and real crawls: a URL is crawled again, once, whatever happens."""

import json
from collections import Counter
from typing import Any

import pytest
from support.lab_commands import Called, bloom, start_bloom
from support.odd_site import ERROR, Lab, LabOf, moved, page
from support.polling import until

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


def assert_settled(lab: Lab, **settings: Any) -> None:
    """Nothing is claimed, and a further run crawls nothing."""
    assert not lab.claims()
    assert lab.crawl(**settings).hits == EACH_RUN


def test_exactly_that_page_is_crawled_again_once(lab: Lab) -> None:
    before = lab.recorded()
    done = recrawl(lab, "/a")
    assert "1 URLs are left for the next crawl of 'odd'" in done.out
    assert lab.recorded() == before
    done_crawl = lab.crawl()
    assert done_crawl.hits == EACH_RUN + Counter(["/a"])
    assert done_crawl.stats["bloom/taken_over"] == 1
    assert lab.recorded() == before
    assert_settled(lab)


def test_a_url_that_was_never_seen_is_crawled_and_recorded(lab: Lab) -> None:
    lab.site.pages["/hidden"] = page("/further")
    lab.site.pages["/further"] = page()
    recrawl(lab, "/hidden")
    assert lab.crawl().hits == EACH_RUN + Counter(["/hidden", "/further"])
    assert lab.recorded() >= {"/hidden", "/further"}
    assert_settled(lab)


def test_a_url_that_a_page_links_before_it_is_put_back_is_crawled_once(lab: Lab) -> None:
    """It is due: whoever finds it first takes it."""
    recrawl(lab, "/hidden")
    lab.site.pages["/"] = page("/hidden", "/a", "/b")
    assert lab.crawl().hits == EACH_RUN + Counter(["/hidden"])
    assert_settled(lab)


def test_a_crawl_that_is_killed_in_between_leaves_it_to_the_next_one(lab: Lab) -> None:
    recrawl(lab, "/a")
    lab.site.hold_after(0)
    with lab.start() as crawl:
        until(lambda: lab.site.held == 2 or crawl.is_over, "both pages are asked for")
        assert not crawl.is_over, crawl.log
        crawl.kill()
    assert "/a" in lab.claims()
    assert lab.crawl().hits == EACH_RUN + Counter(["/a"])
    assert_settled(lab)


def test_the_end_of_a_redirect_is_crawled_though_it_is_seen(lab: Lab) -> None:
    lab.site.pages["/old"] = moved("/a")
    recrawl(lab, "/old")
    assert lab.crawl().hits == EACH_RUN + Counter(["/old", "/a"])
    assert lab.recorded() >= {"/old"}
    assert_settled(lab)


def test_a_page_that_fails_then_is_a_failed_page(lab: Lab) -> None:
    lab.site.pages["/a"] = ERROR
    recrawl(lab, "/a")
    assert lab.crawl(**NO_RETRIES).hits == EACH_RUN + Counter(["/a"])
    (failed,) = bloom(lab, "failed", "--json").json["pages"]
    assert (failed["url"], failed["attempts"]) == (f"{lab.site.url}/a", 1)
    assert failed["reason"] == "HTTP 500"


def test_a_failed_page_is_due_at_once_with_its_own_request(lab_of: LabOf) -> None:
    """That has its callback: the default one would do something else."""
    spider = """
from support.odd_site import OddSpider
from scrapy import Request

class Own(OddSpider):
    def parse(self, response):
        yield Request(response.urljoin("/bad"), callback=self.parse_item, cb_kwargs={"number": 7})

    def parse_item(self, response, number):
        self.crawler.stats.set_value("found", f"{response.url.rpartition('/')[2]} {number}")
"""
    lab = lab_of({"/": page(), "/bad": (ERROR, page())})
    first = lab.crawl(spider, **NO_RETRIES)
    assert first.claims["/bad"].attempt == 1
    assert lab.crawl(spider).hits == EACH_RUN  # it waits
    done = bloom(lab, "recrawl", f"{lab.site.url}/bad", "--json", spider=spider)
    assert (done.json["due"], done.json["urls"][0]["state"]) == (1, "due")
    assert bloom(lab, "failed", "--json", spider=spider).json["failed"] == 0
    last = lab.crawl(spider)
    assert last.hits == EACH_RUN + Counter(["/bad"])
    assert last.stats["found"] == "bad 7"
    assert lab.recorded() == {"/bad"}
    assert not lab.claims()


def test_a_page_that_a_worker_crawls_now_is_left_to_it(lab: Lab) -> None:
    lab.site.pages["/"] = page("/new")
    lab.site.hold_after(1)
    with lab.start() as crawl:
        until(lambda: lab.site.held or crawl.is_over, "the new page is asked for")
        assert not crawl.is_over, crawl.log
        done = recrawl(lab, "/new")
        assert "claimed already" in done.out
        assert "0 URLs are left" in done.out
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/new"] == 1
    assert_settled(lab)


LOOKING_OFTEN = """
from scrapy_bloom.crawl.claims import reclaimer
from support.odd_site import OddSpider

reclaimer.LOOK_SECONDS = 0.5

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
    assert_settled(lab)


def test_two_calls_at_once_leave_a_url_once(lab: Lab) -> None:
    ends = [start_bloom(lab, "recrawl", f"{lab.site.url}/a") for _ in range(2)]
    assert [end().code for end in ends] == [0, 0]
    assert lab.crawl().hits == EACH_RUN + Counter(["/a"])
    assert_settled(lab)


def test_the_callback_gets_the_page(lab: Lab) -> None:
    spider = """
from support.odd_site import OddSpider

class Own(OddSpider):
    def parse_item(self, response):
        self.crawler.stats.set_value("found", response.url.rpartition("/")[2])
"""
    done = recrawl(lab, "/a", "--callback", "parse_item", spider=spider)
    assert "will be crawled" in done.out
    assert lab.crawl(spider).stats["found"] == "a"
    assert_settled(lab)


CRAWL_SPIDER = """
from support.odd_site import OddSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class Rules(CrawlSpider):
    name = "odd"
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]
    start = OddSpider.start

    def parse_page(self, response):
        self.crawler.stats.inc_value(f"parsed {response.url.rpartition('/')[2]}")
"""


def test_a_crawl_spider_follows_the_links_by_its_rules(lab: Lab) -> None:
    lab.site.pages["/a"] = page("/c", "/added")
    lab.site.pages["/added"] = page()
    recrawl(lab, "/a", spider=CRAWL_SPIDER)
    done = lab.crawl(CRAWL_SPIDER)
    assert done.hits == EACH_RUN + Counter(["/a", "/added"])
    assert done.stats["parsed added"] == 1
    assert "parsed a" not in done.stats
    recrawl(lab, "/a", "--callback", "parse_page", spider=CRAWL_SPIDER)
    assert lab.crawl(CRAWL_SPIDER).stats["parsed a"] == 1
    assert_settled(lab)


@pytest.mark.parametrize("kind", ["JOBDIR", "scrapy-redis"])
def test_with_a_queue_that_outlives_the_crawl(lab: Lab, kind: str) -> None:
    settings: dict[str, Any] = {"JOBDIR": lab.directory / "job"}
    if kind == "scrapy-redis":
        settings = {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "SCHEDULER_PERSIST": True,
            "REDIS_URL": lab.redis_url,
            "BLOOM_HEARTBEAT": 1,
        }
    recrawl(lab, "/a", **settings)
    assert lab.crawl(**settings).hits == EACH_RUN + Counter(["/a"])
    assert_settled(lab, **settings)


def test_a_url_is_left_in_the_filter_of_its_window(lab_of: LabOf) -> None:
    settings: dict[str, Any] = {
        "BLOOM_RECRAWL_RULES": json.dumps([["/list", "1 day"]]),
        "BLOOM_RECRAWL_AFTER": "5 months",
    }
    lab = lab_of({"/": page("/list", "/a"), "/list": page(), "/a": page()})
    lab.crawl(**settings)
    recrawl(lab, "/list", "/a", **settings)
    claims = lab.claims()  # of all windows
    assert claims.keys() == {"/list", "/a"}
    assert claims["/list"].key.startswith("{odd:bloom:1-day:")
    assert not claims["/a"].key.startswith("{odd:bloom:1-day:")
    assert all(lab.client.expiretime(claim.key) > lab.now() for claim in claims.values())
    assert lab.crawl(**settings).hits == EACH_RUN + Counter(["/list", "/a"])
    assert_settled(lab, **settings)


def test_many_urls_of_a_file(lab: Lab) -> None:
    """Some are the same, and some lines are blank."""
    paths = [f"/many/{number}" for number in range(300)]
    file = lab.directory / "urls"
    urls = [lab.site.url + path for path in paths]
    file.write_text("\r\n".join(["\ufeff" + urls[0], "", *urls, " "]))
    lab.site.pages |= {path: page() for path in paths}
    done = bloom(lab, "recrawl", "--file", str(file), "--json")
    assert (done.code, done.json["left"], len(done.json["urls"])) == (0, 300, 300)
    assert lab.crawl().hits == EACH_RUN + Counter(paths)
    assert_settled(lab)


def test_a_spider_with_braces_in_its_name(lab_of: LabOf) -> None:
    spider = """
from support.odd_site import OddSpider

class Own(OddSpider):
    name = "odd {1}"
"""
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    assert lab.crawl(spider).hits == EACH_RUN + Counter(["/a", "/b"])
    assert lab.recorded("odd %7B1%7D:bloom") == {"/a", "/b"}
    recrawl(lab, "/a", spider=spider)
    assert lab.crawl(spider).hits == EACH_RUN + Counter(["/a"])
    assert lab.crawl(spider).hits == EACH_RUN


def test_under_scheduled_it_says_what_would_happen(lab: Lab) -> None:
    done = bloom(lab, "recrawl", f"{lab.site.url}/a", BLOOM_REMEMBER="scheduled")
    assert (done.code, done.out) == (2, "")
    assert 'BLOOM_REMEMBER is "scheduled"' in done.err
    assert not lab.claims()
