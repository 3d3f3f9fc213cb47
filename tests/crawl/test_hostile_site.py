"""Sites that harm crawlers: a crawl takes hardly more than with Scrapy's own filter."""

from typing import Any

from support.counting import MEASURED
from support.odd_site import PLAIN_SCRAPY, Done, Lab, LabOf, Reply, page

#: KiB of memory that a crawl takes more than half as much again as with Scrapy's own filter.
MAX_MORE_MEMORY = 40 << 10
#: Characters of a line that this package logs, at most.
MAX_LINE = 10_000


def both(lab: Lab, spider: str = MEASURED, **settings: Any) -> tuple[Done, Done]:
    """Crawl with Scrapy's own filter, then with ours."""
    plain = lab.crawl(spider, **PLAIN_SCRAPY, BLOOM_KEY="plain", **settings)
    ours = lab.crawl(spider, **settings)
    assert ours.stats["peak"] < 1.5 * plain.stats["peak"] + MAX_MORE_MEMORY
    return plain, ours


# -- endless sites --


def calendar(path: str) -> Reply:
    """A page a day, which links the days around it."""
    day = int(path.rpartition("/")[2] or 0)
    return page(*(f"/{other}" for other in (day + 1, day - 1, day + 2, day - 2)))


def test_an_endless_site_costs_what_is_pending(lab_of: LabOf) -> None:
    lab = lab_of({})
    lab.site.rest = calendar
    plain, ours = both(lab, CLOSESPIDER_PAGECOUNT=100)
    for one in (plain, ours):
        assert 100 <= sum(one.hits.values()) <= 130
        assert one.stats["finish_reason"] == "closespider_pagecount"
    assert not [path for path, times in ours.hits.items() if times > 1]
    left = ours.stats["scheduler/enqueued"] - ours.stats["response_received_count"]
    assert 0 < len(ours.claims) <= left + 1 <= 30
    again = lab.crawl(CLOSESPIDER_PAGECOUNT=20)
    assert again.stats["bloom/taken_over"] > 0
    assert set(again.hits) & set(ours.hits) == {"/"}


# -- one page with very many links --

MANY = f"""
import re
from scrapy import Request
from scrapy.exceptions import CloseSpider
{MEASURED}
    pages = 0

    def parse(self, response):
        yield response.follow("/many", self.parse_many, priority=1)
        yield response.follow("/chain/0", self.parse_chain, priority=2)

    def parse_chain(self, response):
        self.pages += 1
        yield from self.links(response, callback=self.parse_chain)

    def parse_many(self, response):
        before = self.pages
        for match in re.finditer(rb'href="(/[^"]+)"', response.body):
            yield Request(response.urljoin(match[1].decode()), priority=-1)
        self.crawler.stats.set_value("of_others", self.pages - before)
        raise CloseSpider("enough")
"""


def test_other_pages_are_crawled_while_a_page_yields_its_links(lab_of: LabOf) -> None:
    body = b"".join(b'<a href="/%d">x</a>' % number for number in range(5_000))
    lab = lab_of({"/": page(), "/many": Reply(body=body)})
    lab.site.rest = lambda path: page(f"/chain/{int(path.rpartition('/')[2]) + 1}")
    plain, ours = both(lab, MANY, LOG_LEVEL="INFO")
    for one in (plain, ours):
        assert one.stats["scheduler/enqueued"] >= 5_000
    assert "Traceback" not in ours.log
    assert ours.stats["of_others"] > 0
    assert len(ours.claims) + ours.stats["response_received_count"] >= 5_000


# -- long URLs --

#: URLs of 1 MB, each of which is linked twice.
LONG_URLS = f"""
from scrapy import Request
{MEASURED}
    def parse(self, response):
        for number in range(4):
            for _ in range(2):
                url = response.urljoin("/" + "x" * (1 << 20) + str(number))
                yield Request(url, self.parse, errback=self.failed, meta={{"of": url}})

    def failed(self, failure):
        pass
"""


def test_log_lines_about_urls_of_1_mb_are_short(lab_of: LabOf) -> None:
    lab = lab_of({"/": page()})
    settings = {"LOG_LEVEL": "DEBUG", "DUPEFILTER_DEBUG": True, "RETRY_ENABLED": False}
    settings["URLLENGTH_LIMIT"] = 0  # Scrapy drops URLs of more than 2,083 characters
    plain, ours = both(lab, LONG_URLS, **settings)
    for name in ("downloader/request_count", "dupefilter/filtered", "scheduler/enqueued"):
        assert ours.stats[name] == plain.stats[name]
    assert ours.stats["bloom/not_kept"] == 4
    lines = [line for line in ours.log.splitlines() if "[scrapy_bloom" in line]
    assert sum("Filtered duplicate request" in line for line in lines) == 4
    assert max(map(len, lines)) < MAX_LINE
