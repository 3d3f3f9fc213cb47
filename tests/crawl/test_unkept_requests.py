"""Spiders whose requests cannot be stored as JSON, interrupted: no page is lost.

Such a request has a claim without the request, so no other worker can crawl it. The page that
yielded it must be crawled again, and therefore keeps its own claim until the request is settled.
"""

from collections import Counter

import pytest
from support.ends import MIDWAY
from support.odd_site import LabOf, Pages, page, tree
from support.polling import until

PAGES = 40


# -- spiders as people write them --

RULES = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class RulesSpider(CrawlSpider):
    name = "odd"
    rules = (Rule(LinkExtractor(), callback="item", follow=True),)
    start = OddSpider.start

    def item(self, response):
        yield {"url": response.url}
"""
LAMBDA = """
class LambdaSpider(OddSpider):
    def parse(self, response):
        return self.links(response, callback=lambda response: self.parse(response))
"""


def chain(count: int) -> Pages:
    """Return a site on which each page links the next one only."""
    pages = {f"/{n}": page(f"/{n + 1}") for n in range(count)}
    return {"/": page("/0"), **pages, f"/{count}": page()}


# -- interrupted crawls --


@pytest.mark.parametrize(
    ("spider", "pages"), [(RULES, tree(PAGES)), (LAMBDA, chain(PAGES // 2))], ids=["rules", "chain"]
)
def test_the_next_run_crawls_what_is_missing(lab_of: LabOf, spider: str, pages: Pages) -> None:
    """One more run finds nothing new or left behind."""
    lab = lab_of(pages)
    lab.kill_midway(MIDWAY, spider)
    assert lab.missing()
    lab.crawl(spider)
    assert not lab.missing()
    done = lab.crawl(spider)
    assert done.hits == Counter(["/"])
    assert not done.claims
    assert not done.workers


def test_links_of_the_start_page_are_crawled_by_another_worker_in_the_same_run(
    lab_of: LabOf,
) -> None:
    """The worker that had claimed them is killed. The start page has no claim that could wait."""
    children = [f"/{number}" for number in range(20)]
    lab = lab_of({"/": page(*children), **dict.fromkeys(children, page())})
    with lab.start(LAMBDA, BLOOM_HEARTBEAT=1, DOWNLOAD_DELAY=5) as first:
        until(lambda: len(lab.claims()) == len(children) or first.is_over, "all are claimed")
        with lab.start(LAMBDA, BLOOM_HEARTBEAT=1) as second:
            until(lambda: lab.site.hits()["/"] == 2 or second.is_over, "the start page is read")
            first.kill()
            second.wait()
    assert not lab.missing()
    assert not lab.claims()
